// The charts: thousands of points, drawn by uPlot on a canvas.

import { bytes, clock, count, loss, scaled } from "./words.js";

// Steps between the ticks of an axis that counts: with uPlot's own, such as 2.5, rounded labels mislead.
const WHOLE_STEPS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

const AXES = {
  round: { name: "round", write: count, steps: WHOLE_STEPS },
  tokens: { name: "tokens that the swarm has trained on", write: scaled },
  bytes: { name: "bytes of all updates, each counted once", write: bytes },
  time: { name: "time of day", write: clock },
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Times as short as they can be told apart.
function moments(splits) {
  const apart = splits.length > 1 ? splits[1] - splits[0] : 0;
  const parts = apart >= 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(apart < 60 ? { second: "2-digit" } : {}) };
  return splits.map((time) => new Date(time * 1000).toLocaleString("en-GB", parts));
}

// The row of a round: the first that does not end before it.
export function rowOf(rounds, round) {
  let low = 0;
  let high = rounds.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rounds[middle] < round) low = middle + 1;
    else high = middle;
  }
  return low;
}

// How many bits of a number in hex are set.
function ones(hex) {
  let found = 0;
  for (const digit of hex) found += [0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4][parseInt(digit, 16)];
  return found;
}

function lossPoints(book, axis) {
  const rows = book.rows;
  const heldout = new Array(rows.round.length).fill(null);
  for (const [round, value] of book.heldout) {
    const at = rowOf(rows.round, round);
    if (at < heldout.length) heldout[at] = value;
  }
  const data = [[], [], []];
  let before = -Infinity;
  for (let at = 0; at < rows.round.length; at++) {
    const x = rows[axis][at];
    // Without a time, without a loss (round 0 only gathers members), or where a clock was set back.
    if (x === null || (rows.loss[at] === null && heldout[at] === null) || x < before) continue;
    before = x;
    data[0].push(x);
    data[1].push(rows.loss[at]);
    data[2].push(heldout[at]);
  }
  return data;
}

function crowdPoints(book, axis) {
  const rows = book.rows;
  const data = [[], [], []];
  let before = -Infinity;
  for (let at = 0; at < rows.round.length; at++) {
    const x = rows[axis][at];
    if (x === null || x < before) continue;
    before = x;
    data[0].push(x);
    data[1].push(ones(rows.present[at]));
    data[2].push(ones(rows.counted[at]));
  }
  return data;
}

function lossWords(book) {
  const rows = book.rows;
  const first = rows.loss.findIndex((value) => value !== null);
  let last = rows.loss.length - 1;
  while (last > first && rows.loss[last] === null) last--;
  if (first < 0) return "The loss: nothing is known yet";
  let said = `The loss was ${loss(rows.loss[first])} in round ${count(rows.round[first])} and is ${loss(rows.loss[last])} in round ${count(rows.round[last])}`;
  const heldout = book.heldout.at(-1);
  if (heldout) said += `; on held-out data ${loss(heldout[1])} after round ${count(heldout[0])}`;
  return said;
}

function crowdWords(book) {
  const members = book.rows.present.map(ones);
  if (!members.length) return "Members over time: nothing is known yet";
  return `There are ${count(members.at(-1))} members, and the updates of ${count(ones(book.rows.counted.at(-1)))} counted in the last round; at most there were ${count(Math.max(...members))}`;
}

const number = (value) => (value === null ? "–" : count(value));
const LOSSES = {
  points: lossPoints,
  words: lossWords,
  height: (width) => Math.max(240, Math.min(420, width * 0.45)),
  series: () => [
    { label: "loss", stroke: colour("--loss"), width: 1.5, value: (_, value) => (value === null ? "–" : loss(value)), points: { show: false } },
    { label: "held-out loss", stroke: colour("--heldout"), width: 2, spanGaps: true, value: (_, value) => (value === null ? "–" : loss(value)), points: { show: true, size: 5 } },
  ],
};
const CROWD = {
  points: crowdPoints,
  words: crowdWords,
  height: () => 160,
  // From none on: a swarm that loses one of thirty is no landslide.
  range: (_, low, high) => [0, Math.max(1, high)],
  steps: WHOLE_STEPS,
  series: () => [
    { label: "members", stroke: colour("--loss"), width: 1.5, value: (_, value) => number(value), points: { show: false } },
    { label: "updates that counted", stroke: colour("--heldout"), width: 1.5, value: (_, value) => number(value), points: { show: false } },
  ],
};
export const lossChart = (place) => new Chart(place, LOSSES);
export const crowdChart = (place) => new Chart(place, CROWD);

// The choice of a distance between ticks; without one of its own uPlot chooses.
const ticks = ({ steps }) => (steps ? { incrs: steps } : {});

class Chart {
  constructor(place, kind) {
    this.place = place;
    this.kind = kind;
    this.axis = "round";
    this.book = null;
    this.plot = null;
    this.zoomed = false;
    this.marked = null;
    new ResizeObserver(() => this.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
  }

  show(book, axis = this.axis) {
    const other = axis !== this.axis;
    this.book = book;
    this.axis = axis;
    if (other || !this.plot) {
      this.rebuild();
    } else {
      const kept = this.plot.scales.x;
      const [min, max] = [kept.min, kept.max];
      this.plot.batch(() => {
        this.plot.setData(this.kind.points(book, axis), !this.zoomed);
        if (this.zoomed) this.plot.setScale("x", { min, max });
      });
    }
    this.describe();
  }

  mark(at) {
    this.marked = at;
    if (this.plot) this.plot.redraw(false, false);
  }

  rebuild() {
    if (!this.book) return;
    if (this.plot) this.plot.destroy();
    this.zoomed = false;
    const axis = AXES[this.axis];
    const lines = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 } };
    const options = {
      ...this.size(),
      scales: { x: { time: this.axis === "time" }, y: this.kind.range ? { range: this.kind.range } : {} },
      axes: [
        { ...lines, values: (_, splits) => (this.axis === "time" ? moments(splits) : splits.map(axis.write)), space: 70, ...ticks(axis) },
        { ...lines, size: 56, values: (_, splits) => splits.map((value) => +value.toPrecision(4)), ...ticks(this.kind) },
      ],
      series: [
        { label: axis.name, value: (_, value) => (value === null ? "–" : axis.write(value)) },
        ...this.kind.series(),
      ],
      cursor: { drag: { x: true, y: false } },
      hooks: {
        setSelect: [(plot) => { if (plot.select.width > 2) this.zoomed = true; }],
        draw: [(plot) => this.drawMark(plot)],
        ready: [(plot) => this.showLast(plot)],
        setData: [(plot) => this.showLast(plot)],
        setCursor: [(plot) => this.showLast(plot)],
      },
    };
    this.plot = new uPlot(options, this.kind.points(this.book, this.axis), this.place);
    this.plot.over.addEventListener("dblclick", () => { this.zoomed = false; });
  }

  // While nobody points at the chart its legend has the last values, each series its own.
  showLast(plot) {
    if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) return;
    const lastOf = (values) => values.findLastIndex((value) => value !== null && value !== undefined);
    const at = plot.data.map(lastOf);
    const known = at.map((index) => (index < 0 ? null : index));
    if (known[0] !== null) plot.setLegend({ idxs: known }, false);
  }

  drawMark(plot) {
    if (this.marked === null) return;
    const x = this.book.rows[this.axis][this.marked];
    if (x === null || x === undefined || x < plot.scales.x.min || x > plot.scales.x.max) return;
    const at = Math.round(plot.valToPos(x, "x", true));
    plot.ctx.save();
    plot.ctx.strokeStyle = colour("--accent");
    plot.ctx.setLineDash([4, 4]);
    plot.ctx.beginPath();
    plot.ctx.moveTo(at, plot.bbox.top);
    plot.ctx.lineTo(at, plot.bbox.top + plot.bbox.height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  // By keyboard: `factor` below 1 zooms in on the end.
  zoom(factor) {
    if (!this.plot || this.plot.data[0].length < 2) return;
    const xs = this.plot.data[0];
    const [first, last] = [xs[0], xs[xs.length - 1]];
    const { min, max } = this.plot.scales.x;
    const end = Math.min(max, last);
    const start = Math.max(first, end - (max - min) * factor);
    this.zoomed = factor !== Infinity && start > first;
    this.plot.setScale("x", this.zoomed ? { min: start, max: end } : { min: first, max: last });
  }

  size() {
    const width = this.place.clientWidth;
    return { width: Math.max(200, width), height: this.kind.height(width) };
  }

  resize() {
    if (this.plot && this.place.clientWidth) this.plot.setSize(this.size());
  }

  describe() {
    this.place.setAttribute("aria-label", this.kind.words(this.book));
  }
}
