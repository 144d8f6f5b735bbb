// How things are written: numbers with units, what is not known, and elements made of text alone.
// Text from elsewhere becomes text here, never markup.

export const UNKNOWN = "not known";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "colour") made.style.setProperty("--colour", value);
    else if (name === "width") made.style.setProperty("width", value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

// Known values as text; the rest says so.
export function shown(value, write = String) {
  if (value === null || value === undefined || Number.isNaN(value)) {
    return element("span", { class: "unknown" }, UNKNOWN);
  }
  return document.createTextNode(write(value));
}

export const short = (peer) => peer.slice(-6);
export const count = (number) => Math.round(number).toLocaleString("en");
export const loss = (number) => number.toFixed(4);

export function scaled(number) {
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(number) >= size) return (number / size).toPrecision(3) + unit;
  }
  return String(Math.round(number));
}

export function bytes(number) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (number >= size) return `${(number / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(number)} B`;
}

export function rate(number) {
  const bits = number * 8;
  for (const [size, unit] of [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]) {
    if (bits >= size) return `${(bits / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(bits)} bit/s`;
}

// A limit of the line, exactly, as the form for limits takes it.
export function limit(number) {
  const bits = number * 8;
  const [size, unit] = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]].find(([least]) => bits >= least) ?? [1, "bit/s"];
  return `${+(bits / size).toPrecision(9)} ${unit}`;
}

export function seconds(number) {
  if (number < 10) return `${number.toFixed(2)} s`;
  if (number < 90) return `${Math.round(number)} s`;
  if (number < 5400) return `${Math.round(number / 60)} min`;
  if (number < 129600) return `${Math.round(number / 3600)} h`;
  return `${Math.round(number / 86400)} d`;
}

export const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB");
}

// Puts children in the place of those that are there, but only where something has changed: what is
// read aloud, or selected, is left alone.
export function fill(parent, children) {
  const next = element("div", {}, ...children);
  if (parent.innerHTML !== next.innerHTML) parent.replaceChildren(...next.childNodes);
}

export function tile(name, value, note) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, note ? element("small", {}, note) : null));
}

export function fact(name, value, note) {
  return [element("dt", {}, name), element("dd", {}, ...[value].flat(), note ? element("small", {}, note) : null)];
}
