-- Attaches `gpusync server` to a file in a headless Neovim, and writes what it shows as JSON.
-- GPUSYNC is the command as a JSON array, GPUSYNC_OUT the file to write.

local seen = { version = tostring(vim.version()) }
local command = vim.json.decode(vim.env.GPUSYNC)

local function finish()
  local file = assert(io.open(vim.env.GPUSYNC_OUT, "w"))
  file:write(vim.json.encode(seen))
  file:close()
  vim.cmd("qa!")
end

local function places(buffer)
  return vim.tbl_map(function(one)
    return one.code .. ":" .. (one.lnum + 1)
  end, vim.diagnostic.get(buffer))
end

local function shows(buffer, count)
  local done = vim.wait(30000, function()
    return #vim.diagnostic.get(buffer) == count
  end, 50)
  if not done then
    error("waited for " .. count .. " diagnostics; there are " .. table.concat(places(buffer), ", "))
  end
  return places(buffer)
end

local function ask(method, params)
  local answers = vim.lsp.buf_request_sync(0, method, params, 30000)
  for _, answer in pairs(answers or {}) do
    return answer.result
  end
end

local function run()
  if vim.lsp.config then
    vim.lsp.config("gpusync", { cmd = command, filetypes = { "python" }, root_markers = { "pyproject.toml" } })
    vim.lsp.enable("gpusync")
    vim.cmd.edit("train.py")
    vim.bo.filetype = "python"
    vim.api.nvim_exec_autocmds("FileType", { buffer = 0 })
  else
    vim.cmd("edit train.py")
    vim.bo.filetype = "python"
    local client = vim.lsp.start_client({ name = "gpusync", cmd = command, root_dir = vim.fn.getcwd() })
    vim.lsp.buf_attach_client(0, client)
  end
  seen.opened = shows(0, 2)

  local line = vim.api.nvim_buf_get_lines(0, 4, 5, false)[1]
  local at = { line = 4, character = line:find(".to(", 1, true) + 1 }
  local document = { uri = vim.uri_from_bufnr(0) }
  seen.hover = ask("textDocument/hover", { textDocument = document, position = at }).contents.value
  seen.lenses = vim.tbl_map(function(one)
    return one.command.title
  end, ask("textDocument/codeLens", { textDocument = document }))

  local range = { start = at, ["end"] = at }
  local context = { diagnostics = {}, only = { "quickfix.gpusync.safe" } }
  local actions = ask("textDocument/codeAction", { textDocument = document, range = range, context = context })
  seen.actions = #actions
  if vim.lsp.config then
    vim.lsp.util.apply_workspace_edit(actions[1].edit, vim.lsp.get_clients({ name = "gpusync" })[1].offset_encoding)
  else
    vim.lsp.util.apply_workspace_edit(actions[1].edit, "utf-16")
  end
  seen.fixed = vim.api.nvim_buf_get_lines(0, 4, 5, false)[1]
  seen.after = shows(0, 1)
end

vim.schedule(function()
  local ok, problem = pcall(run)
  if not ok then
    seen.problem = tostring(problem)
  end
  finish()
end)
