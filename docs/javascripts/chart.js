/* The two pictures of the interactive page, as SVG. Colours are classes of stylesheets/interactive.css. */

const MARGIN = { left: 58, right: 12, top: 14, bottom: 44 };

export function element(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "line", "circle", "path", "text", "title"].includes(name);
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/* 131072 as "131,072"; large and small numbers with three digits. */
export function shown(number) {
  if (number >= 1e7 || (number && Math.abs(number) < 1e-3)) return number.toExponential(2).replace("e+", "e");
  return number.toLocaleString("en-US", { maximumFractionDigits: Math.abs(number) < 100 ? 3 : 0 });
}

/* An empty picture with axes. `x` and `y` have a label, a range and ticks; `y.log` is its scale. */
function frame(width, height, label, x, y) {
  const [inner, tall] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
  const scale = y.log ? Math.log10 : (value) => value;
  const [low, high] = y.range.map(scale);
  const toX = (value) => MARGIN.left + (inner * (value - x.range[0])) / (x.range[1] - x.range[0]);
  const toY = (value) => MARGIN.top + tall * (1 - (scale(value) - low) / (high - low));
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const tick of y.ticks) {
    svg.append(line("grid", MARGIN.left, toY(tick), width - MARGIN.right, toY(tick)));
    svg.append(text("tick", MARGIN.left - 6, toY(tick) + 4, y.name(tick), "end"));
  }
  for (const tick of x.ticks) {
    const anchor = toX(tick) > width - 40 ? "end" : "middle";
    svg.append(text("tick", toX(tick), height - MARGIN.bottom + 18, shown(tick), anchor));
  }
  svg.append(line("axis", MARGIN.left, height - MARGIN.bottom, width - MARGIN.right, height - MARGIN.bottom));
  svg.append(text("name", MARGIN.left + inner / 2, height - 6, x.label, "middle"));
  return { svg, toX, toY };
}

function line(name, x1, y1, x2, y2) {
  return element("line", { class: name, x1, y1, x2, y2 });
}

function text(name, x, y, content, anchor = "start") {
  return element("text", { class: name, x, y, "text-anchor": anchor }, content);
}

function path(name, points) {
  const at = points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`);
  return element("path", { class: name, d: `M${at.join("L")}` });
}

/* About `count` round numbers from 0 to `last`. */
function ticks(last, count) {
  const size = 10 ** Math.floor(Math.log10(last / count));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => last / each <= count);
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, each) => each * step);
}

/* A dot for each pair; a triangle if it has unseen angles within the target length. */
export function drawWavelengths(width, found) {
  const { pairs, training, trained, target } = found;
  const before = training.replace("training", "");
  const lengths = pairs.flatMap((pair) => [pair.wavelength, pair.unscaled]).filter(Number.isFinite);
  const top = Math.ceil(Math.log10(Math.max(...lengths, target) * 1.3));
  const [height, right] = [Math.min(380, Math.max(280, width * 0.6)), width - MARGIN.right];
  const powers = Array.from({ length: top + 1 }, (_, power) => 10 ** power);
  const x = { label: "pair", range: [-0.5, pairs.length - 0.5], ticks: ticks(pairs.length - 1, width < 500 ? 5 : 9) };
  const y = { log: true, range: [1, 10 ** top], ticks: powers, name: powerOfTen };
  const label = `Wavelength of each of ${pairs.length} pairs, in tokens, on a logarithmic scale. ${found.sentence}`;
  const { svg, toX, toY } = frame(width, height, label, x, y);
  const marks = trained === target ? [
    [before ? `trained length${before}, target length` : "trained and target length", trained, -5],
  ] : [
    [`trained length${before}`, trained, trained < target ? 14 : -5], ["target length", target, trained < target ? -5 : 14],
  ];
  for (const [name, length] of marks)
    svg.append(line(name.split(" ")[0], MARGIN.left, toY(length), right, toY(length)));
  for (const pair of pairs) {
    const cx = toX(pair.number);
    if (pair.wavelength !== pair.unscaled)
      svg.append(element("circle", { class: "unscaled", cx, cy: toY(pair.unscaled), r: 3 }));
    if (pair.wavelength === Infinity) continue;
    const cy = toY(pair.wavelength);
    svg.append(pair.unseen ? triangle(cx, cy, pair.title) : dot(cx, cy, pair.title));
  }
  for (const [name, length, offset] of marks) {
    // Dots are below a line at its left, and above it at its right.
    const [at, anchor] = offset < 0 ? [MARGIN.left + 6, "start"] : [right - 6, "end"];
    svg.append(text("mark", at, toY(length) + offset, `${name} ${shown(length)}`, anchor));
  }
  return svg;
}

function powerOfTen(value) {
  const digits = [..."⁰¹²³⁴⁵⁶⁷⁸⁹"];
  const power = Math.round(Math.log10(value));
  return power < 4 ? shown(value) : `10${[...String(power)].map((digit) => digits[digit]).join("")}`;
}

function dot(cx, cy, title) {
  return element("circle", { class: "seen", cx, cy, r: 3 }, element("title", {}, title));
}

function triangle(x, y, title) {
  const d = `M${x - 4.5},${y + 4}L${x + 4.5},${y + 4}L${x},${y - 4.5}Z`;
  return element("path", { class: "unseen", d }, element("title", {}, title));
}

/* The mean score against distance, with and without scaling. */
export function drawDecay(width, found) {
  const { scaled, unscaled, trained, target } = found;
  const scores = [...scaled, ...unscaled].map(([, score]) => score);
  const [low, high] = [Math.min(0, ...scores) - 0.05, Math.max(...scores) + 0.05];
  const steps = Array.from({ length: 15 }, (_, step) => Number((step * 0.2 - 1).toFixed(1)));
  const x = { label: "distance in tokens", range: [0, target], ticks: ticks(target, width < 500 ? 3 : 6) };
  const inRange = steps.filter((each) => each >= low && each <= high);
  const y = { range: [low, high], ticks: inRange, name: (each) => each.toFixed(1) };
  const label = `Mean score of equal queries and keys, by their distance, up to ${shown(target)} tokens.`;
  const height = Math.min(320, Math.max(240, width * 0.5));
  const { svg, toX, toY } = frame(width, height, label, x, y);
  const place = (points) => points.map(([distance, score]) => [toX(distance), toY(score)]);
  if (trained < target) {
    svg.append(line("trained", toX(trained), MARGIN.top, toX(trained), height - MARGIN.bottom));
    const isRight = toX(trained) > width - 150;
    const at = toX(trained) + (isRight ? -6 : 6);
    svg.append(text("mark", at, MARGIN.top + 10, `trained length ${shown(trained)}`, isRight ? "end" : "start"));
  }
  if (found.rule !== "default") svg.append(path("without", place(unscaled)));
  svg.append(path("with", place(scaled)));
  return svg;
}
