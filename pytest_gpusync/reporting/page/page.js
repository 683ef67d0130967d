"use strict";
// Everything here is an addition: without the script the page shows all of its content. Elements with data-script are
// hidden until now.
const every = (selector, within = document) => [...within.querySelectorAll(selector)];
every("[data-script]").forEach(element => { element.hidden = false; });

// Filter: rows and lines that contain every word.
const filter = document.getElementById("filter");
if (filter) {
  const items = every("[data-filter]").map(element => [element, element.textContent.toLowerCase()]);
  const shown = document.getElementById("shown");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let number = 0;
    for (const [element, text] of items) {
      element.hidden = !words.every(word => text.includes(word));
      number += !element.hidden;
    }
    shown.textContent = words.length ? `${number} of ${items.length} shown` : "";
  });
}

// Sorting: a table's groups by a column, so that nested regions stay under their test; lines by a figure.
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
const sorted = (elements, key, sign) =>
  elements.map(element => [key(element), element]).sort((a, b) => sign * compare(a[0], b[0])).map(pair => pair[1]);
for (const table of every("table[data-sortable]")) {
  every("thead th", table).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.dataset.first === "descending" ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      every("thead th", table).forEach(one => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const key = group => {
        const cell = group.rows[0].cells[column];
        return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
      };
      table.append(...sorted([...table.tBodies], key, order === "ascending" ? 1 : -1));
    });
  });
}
const order = document.getElementById("order");
if (order) {
  order.addEventListener("change", () => {
    const list = document.querySelector("ol.lines[data-sortable]");
    const isText = order.value === "place";
    const key = item => (isText ? item.dataset.place : Number(item.dataset[order.value]));
    list.append(...sorted([...list.children], key, isText ? 1 : -1));
  });
}

// Timelines: a part of the axis, drawn from the syncs one by one.
const SVG = "http://www.w3.org/2000/svg";
const shape = (name, attributes, title) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (name === "text") element.textContent = title;
  else if (title !== undefined) element.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
  return element;
};
const percent = share => `${(100 * share).toFixed(3)}%`;
const sums = numbers => { let sum = 0; return numbers.map(number => (sum += number)); };
const roundNumbers = (low, high, most) => {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= (high - low) / most);
  const found = [];
  for (let number = Math.ceil(low / step); number * step <= high; number++) found.push(number * step);
  return found;
};
const firstWhere = (ordered, holds) => {  // by bisection
  let [low, high] = [0, ordered.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(ordered[middle])) high = middle; else low = middle + 1;
  }
  return low;
};
const digits = number => Number(number.toPrecision(12)).toLocaleString("en", { maximumSignificantDigits: 7 });
const time = units => {  // units of 0.1 µs
  const ms = units / 1e4;
  if (Math.abs(ms) >= 1000) return `${digits(ms / 1000)} s`;
  return ms !== 0 && Math.abs(ms) < 1 ? `${digits(ms * 1000)} µs` : `${digits(ms)} ms`;
};

class Timeline {
  constructor(figure) {
    this.figure = figure;
    this.lanes = every("svg.lane", figure);
    [this.scale, this.stepScale] = every("svg.axis", figure);
    this.number = figure.querySelector("input[type=number]");
    this.said = figure.querySelector("output");
    figure.querySelector("form").addEventListener("submit", event => {
      event.preventDefault();
      this.show(Number(this.number.value));
    });
    const moves = { in: [0.5, 0], out: [2, 0], left: [1, -0.5], right: [1, 0.5] };
    every("button[data-move]", figure).forEach(button => button.addEventListener("click", () => {
      const move = moves[button.dataset.move];
      return move ? this.move(...move) : this.whole();
    }));
    const keys = { ArrowLeft: moves.left, ArrowRight: moves.right, "+": moves.in, "=": moves.in, "-": moves.out };
    const drawn = figure.querySelector(".drawn");
    drawn.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys || event.key === "Home")) return;
      event.preventDefault();
      if (event.key === "Home") this.whole();
      else this.move(...keys[event.key]);
    });
  }

  load() {  // parsed when it is first needed: a page has up to forty timelines
    if (this.data) return;
    this.data = JSON.parse(this.figure.querySelector("script").textContent);
    this.starts = sums(this.data.starts);
    this.edges = sums(this.data.edges);
    this.others = new Set(this.data.others);
    this.view = [0, this.data.total];
    this.longest = (this.data.waits ?? []).reduce((most, wait) => Math.max(most, wait), 1);
  }

  whole() {
    this.load();
    this.draw(0, this.data.total);
  }

  move(scale, shift) {
    this.load();
    const [a, b] = this.view;
    const width = Math.min(this.data.total, Math.max((b - a) * scale, this.data.timed ? 10 : 1));
    const middle = (a + b) / 2 + shift * (b - a);
    const start = Math.min(Math.max(0, middle - width / 2), this.data.total - width);
    this.draw(start, start + width);
  }

  show(step) {
    this.load();
    const at = this.data.steps.indexOf(step);
    if (at < 0) {
      this.said.textContent = `step ${step} made no sync that is listed`;
      return;
    }
    this.number.value = step;
    const [start, end] = [this.edges[at], this.edges[at + 1] ?? this.data.total];
    const margin = 0.08 * (end - start);
    this.draw(Math.max(0, start - margin), Math.min(this.data.total, end + margin));
  }

  draw(a, b) {
    this.view = [a, b];
    const place = unit => (unit - a) / (b - a);
    const steps = this.visibleSteps(a, b);
    const pixel = (b - a) / Math.max(300, this.lanes[0].clientWidth);
    const blocks = this.lanes.map(() => []);
    for (let sync = this.firstFrom(a); sync < this.starts.length && this.starts[sync] <= b; sync++) {
      const start = this.starts[sync], wait = this.data.waits ? this.data.waits[sync] : 1;
      if (start + wait < a) continue;
      this.add(blocks[this.data.lanes[sync]], sync, start, wait, pixel);
      if (this.data.timed && !this.others.has(sync)) this.add(blocks[0], sync, start, wait, pixel);
    }
    this.lanes.forEach((lane, number) => {
      const parts = this.data.timed && number === 0
        ? [shape("rect", { class: "runs", x: 0, y: 2, width: "100%", height: 22 })]
        : steps.filter((_, index) => index % 2).map(([, from, to]) =>
          shape("rect", { class: "band", x: percent(place(from)), width: percent((to - from) / (b - a)), y: 0, height: 26 }));
      for (const block of blocks[number]) {
        const step = this.stepAt(block.start);
        const kind = (this.data.counted[number] ? "wait" : "excused") + (step === null || step < this.data.warmup ? " aside" : "");
        const syncs = block.syncs === 1 ? "1 sync" : `${block.syncs} syncs`;
        const when = this.data.timed ? `${time(block.waited)}, at ${time(block.start)}` : "not timed";
        parts.push(shape("rect", {
          class: `${kind} block`, x: percent(place(block.start)), width: percent((block.end - block.start) / (b - a)), y: 2, height: 22,
        }, `${step === null ? "after the last step" : `step ${step}`}: ${syncs}, ${when}`));
      }
      lane.replaceChildren(...parts);
    });
    const ticks = roundNumbers(a, b, this.lanes[0].clientWidth < 500 ? 3 : 6).filter(unit => this.data.timed || Number.isInteger(unit));
    this.scale.replaceChildren(...ticks.map(unit => this.tick(place(unit), this.data.timed ? time(unit) : digits(unit))));
    const share = ([, from, to]) => (Math.min(to, b) - Math.max(from, a)) / (to - from);
    const mostly = steps.some(step => share(step) > 0.5) ? steps.filter(step => share(step) > 0.5) : steps;
    let last = -1;
    const numbers = mostly.map(([step, from]) => [Math.max(0, place(from)), step === null ? "after" : String(step)])
      .filter(([at]) => (last < 0 || at - last >= 0.07) && (last = at, true));
    this.stepScale.replaceChildren(...numbers.map(([at, text]) => this.tick(at, text)));
    const named = mostly.filter(([step]) => step !== null).map(([step]) => step);
    const which = named.length === 0 ? "no step" : named.length === 1 ? `step ${named[0]}` : `steps ${named[0]} to ${named[named.length - 1]}`;
    this.said.textContent = `showing ${which}, ${this.data.timed ? `${time(a)} to ${time(b)}` : `syncs ${Math.ceil(a)} to ${Math.floor(b)}`}`;
  }

  add(lane, sync, start, wait, pixel) {  // as one block with its neighbor if the screen cannot show them apart
    const before = lane[lane.length - 1];
    if (before && before.end + pixel / 2 > start && this.stepAt(before.start) === this.stepAt(start) && (wait < pixel || before.end - before.start < pixel)) {
      before.end = Math.max(before.end, start + wait);
      before.syncs += 1;
      before.waited += wait;
    } else {
      lane.push({ start, end: start + wait, syncs: 1, waited: wait });
    }
  }

  tick(at, text) {
    return shape("text", at > 0.93 ? { x: "100%", y: 14, "text-anchor": "end" } : { x: percent(Math.max(0, at)), y: 14 }, text);
  }

  firstFrom(a) {  // syncs of several threads overlap: begin where even the longest cannot reach `a`
    return firstWhere(this.starts, start => start >= a - this.longest);
  }

  indexAt(unit) {
    return Math.max(0, firstWhere(this.edges, edge => edge > unit) - 1);
  }

  stepAt(unit) { return this.data.steps.length ? this.data.steps[this.indexAt(unit)] : null; }

  visibleSteps(a, b) {
    const found = [];
    for (let at = this.indexAt(a); at < this.edges.length && this.edges[at] < b; at++) {
      found.push([this.data.steps[at], this.edges[at], this.edges[at + 1] ?? this.data.total]);
    }
    return found;
  }
}

const timelines = new Map(every("figure.timeline[data-steps]").map(figure => [figure, new Timeline(figure)]));
every("rect[data-step]").forEach(bar => bar.addEventListener("click", () => {
  const figure = bar.closest("details").querySelector("figure.timeline[data-steps]");
  if (!figure) return;
  timelines.get(figure).show(Number(bar.dataset.step));
  figure.scrollIntoView({ block: "nearest" });
}));

// A link to a region opens it.
const open = () => {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", open);
open();
