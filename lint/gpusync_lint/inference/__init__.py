"""Inference: the values of the expressions of a project, computed without running it.

This is an abstract interpretation. A value says what is known about an object: its kind and, for a tensor, its device
(`domain.values`). The statements of a function are executed in order on a `Frame`, which maps names to values
(`domain.environment`). Transfer functions (`transfer`) do that, one for each type of syntax. Where paths meet, values
are joined (`domain.lattice`). The result of a function is its summary (`summaries`): what it returns, the values of its
expressions, and its effects. A call uses the summary of the callee, and widens the arguments with which the callee is
run. `fixpoint` runs functions until no summary changes, or a limit is reached.

An example. Each comment shows the value that the statement binds or returns, and the finding on the line:

    import torch

    model = torch.nn.Linear(8, 1).cuda()                 # Value(MODULE, GPU, ref='torch.nn.Linear', made_with=())

    def error_of(batch, target):
        output = model(batch.cuda(non_blocking=True))    # Value(TENSOR, GPU, gradient=FLOWS)
        error = output - target.cuda(non_blocking=True)  # Value(TENSOR, GPU, gradient=FLOWS)
        return error.abs().mean()                        # Value(TENSOR, GPU, zero_dim=True, gradient=FLOWS)

    loader = torch.utils.data.DataLoader(examples, pin_memory=True)
    total = 0                                            # Value(HOST, const=0)
    for batch, target in loader:                         # Value(TENSOR, CPU, certain=False, pinned=True)
        error = error_of(batch, target)                  # Value(TENSOR, GPU, zero_dim=True, gradient=FLOWS)
        total += error.item()                            # GS201

1. The body of the module runs first. `model` is a module whose weights are on the GPU.
2. The loop iterates over a data loader. By convention, `batch` and `target` are tensors on the host, which is not
   certain. The loop is recorded as an effect, from which `heat` concludes that its body runs in every step.
3. The call passes both to the parameters of `error_of`, which has no summary yet and is run. Its body reads the name
   `model` of the module, which is recorded as a dependency: if the value changes, `error_of` is run again.
4. `error_of` returns a 0-dimensional tensor, from which a backward pass reaches the weights of `model`. That it is a
   tensor is certain, whatever `target` is: it is computed with `output`.
5. `error` is that tensor, and `.item()` returns a host value. The rule for GS201 reads both values, and reports that
   the line waits for the GPU in every step.
"""
