/* The interactive page: controls, a setting, and what follows from it. rope.js has formulas, chart.js pictures. */

import { drawDecay, drawWavelengths, element, shown } from "./chart.js";
import * as rope from "./rope.js";

/* Controls with a slider: the setting is `value(t)` at the slider's position t. */
const POWER_OF_TWO = { value: (t) => Math.round(2 ** t), at: Math.log2 };
const SLIDERS = {
  base: { label: "Base", min: 3, max: 8, step: 0.05, value: (t) => Number((10 ** t).toPrecision(2)), at: Math.log10 },
  rotary_dim: { label: "Rotary width (channels)", min: 8, max: 512, step: 2, value: (t) => t, at: (value) => value },
  trained: { label: "Trained length before scaling (tokens)", min: 8, max: 21, step: 0.5, ...POWER_OF_TWO },
  target: { label: "Target length (tokens)", min: 8, max: 23, step: 0.5, ...POWER_OF_TWO },
  factor: {
    label: "factor", min: 0, max: 7, step: 0.25, value: (t) => Number((2 ** t).toPrecision(3)), at: Math.log2,
  },
};
const LAYOUTS = ["half", "interleaved", "interleaved_to_half"];
const OPTIONAL = "not given";

/* Where `start` was called before, nothing happens. Other pages of the site do not have the element. */
async function start() {
  const root = document.getElementById("rope-page");
  if (!root || root.dataset.started) return;
  root.dataset.started = "yes";
  const response = await fetch(new URL("presets.json", import.meta.url));
  if (!response.ok) throw new Error(`presets.json: ${response.status} ${response.statusText}`);
  new Page(root, await response.json());
}

class Page {
  constructor(root, presets) {
    this.presets = presets;
    this.controls = element("form", { class: "rope-controls", "aria-label": "Settings" });
    this.results = element("div", { class: "rope-results" });
    root.replaceChildren(this.controls, this.results);
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    this.controls.addEventListener("input", (event) => this.change(event.target));
    this.controls.addEventListener("change", () => this.share());
    this.readAddress();
    this.build();
    new ResizeObserver(() => this.results.clientWidth !== this.width && this.draw()).observe(this.results);
  }

  /* The setting of a preset, with the fields that it does not state at their first values. */
  choose(name) {
    const preset = this.presets.find((each) => each.name === name) ?? this.presets[0];
    this.preset = preset;
    this.first = { ...rope.EMPTY, ...preset.setting };
    this.setting = { ...this.first };
  }

  /* The address has the preset and the fields that differ from it. */
  readAddress() {
    const given = new URLSearchParams(location.search);
    this.choose(given.get("preset"));
    for (const [name, text] of given) {
      if (!(name in rope.EMPTY)) continue;
      if (name === "rule" && !(text in rope.RULES)) continue;
      if (name === "layout" && !LAYOUTS.includes(text)) continue;
      this.setting[name] = parsed(name, text);
    }
  }

  share() {
    const changed = Object.keys(rope.EMPTY).filter((name) => String(this.setting[name]) !== String(this.first[name]));
    const query = new URLSearchParams([["preset", this.preset.name]]);
    for (const name of changed) query.set(name, this.setting[name] ?? "");
    history.replaceState(history.state, "", `${location.pathname}?${query}${location.hash}`);
  }

  /* Somebody changed a control. Another preset or rule has other controls, so that the browser reports no change. */
  change(control) {
    const { name, value } = control;
    if (name === "preset") this.choose(value);
    else if (control.type === "range") this.setting[name] = SLIDERS[name].value(Number(value));
    else this.setting[name] = control.type === "checkbox" ? control.checked : parsed(name, value);
    if (name === "rotary_dim") this.setting.head_dim = Math.max(this.setting.head_dim, this.setting.rotary_dim);
    if (name === "rule") this.useDefaults();
    if (name === "rule" || name === "preset") {
      this.build();
      this.share();
    } else {
      this.update(control);
    }
  }

  /* After another rule was chosen: the factor that reaches the target length, and LongRoPE's lists. */
  useDefaults() {
    const { setting } = this;
    setting.factor = Math.max(1, setting.target / setting.trained);
    const pairs = Math.floor(setting.rotary_dim / 2);
    if (setting.rule !== "longrope" || setting.long_factor.length === pairs) return;
    setting.short_factor = Array(pairs).fill(1);
    setting.long_factor = Array(pairs).fill(setting.factor);
  }

  /* All controls, for the rule of the setting. */
  build() {
    const { fields } = rope.RULES[this.setting.rule];
    const rules = Object.entries(rope.RULES).map(([rule, { label }]) => [rule, label]);
    const focused = document.activeElement?.name;
    this.controls.replaceChildren(
      labelled("Model", select("preset", this.presets.map(({ name }) => [name, name]), this.preset.name)),
      ...["base", "rotary_dim", "trained", "target"].map((name) => slider(name)),
      labelled("Scaling rule", select("rule", rules, this.setting.rule)),
      ...fields.map((name) => (name in SLIDERS ? slider(name) : field(name))),
      field("head_dim"),
      labelled("layout", select("layout", LAYOUTS.map((name) => [name, name]), this.setting.layout)),
    );
    this.update();
    if (focused) this.controls.elements.namedItem(focused)?.focus?.();
  }

  /* Show the setting in all controls except the one in use, then draw. */
  update(except) {
    for (const control of this.controls.elements) {
      if (control === except || !(control.name in this.setting)) continue;
      const value = this.setting[control.name];
      if (control.type === "range") control.value = SLIDERS[control.name].at(value ?? 1);
      else if (control.type === "checkbox") control.checked = value;
      else control.value = Array.isArray(value) ? value.join(", ") : (value ?? "");
    }
    for (const control of this.controls.querySelectorAll("input[type=range]"))
      control.setAttribute("aria-valuetext", shown(this.setting[control.name] ?? 1));
    this.draw();
  }

  draw() {
    this.width = this.results.clientWidth;
    const wrong = rope.problems(this.setting);
    const children = wrong.length ? wrong.map((sentence) => element("p", { role: "alert" }, sentence)) : this.found();
    const open = this.results.querySelector("details")?.open;
    this.results.replaceChildren(...children);
    if (open) this.results.querySelector("details")?.setAttribute("open", "");
  }

  /* What follows from the setting. */
  found() {
    const { setting } = this;
    const isScaled = setting.rule !== "default";
    const pairs = pairsOf(setting);
    const m = rope.attentionFactor(setting);
    const unscaled = rope.decay(pairs.map(({ unscaledFrequency }) => unscaledFrequency), 1, setting.target);
    const scaled = rope.decay(pairs.map(({ frequency }) => frequency), m, setting.target);
    const sentence = sentenceOf(setting, pairs);
    const isPreset = ["rule", "trained", "factor"].every((name) => setting[name] === this.first[name]);
    const note = isPreset && this.preset.note ? [element("p", { class: "rope-note" }, this.preset.note)] : [];
    const training = trainingOf(setting);
    return [
      element("p", { "aria-live": "polite" }, `${sentence} Sines and cosines are multiplied by ${shown(m)}.`),
      ...note,
      figure("Wavelength of each pair, in tokens", drawWavelengths(this.width, { ...setting, pairs, sentence, training }),
        ["seen", `only angles that ${training} showed`], ["unseen", `also angles that ${training} did not show`],
        ...(isScaled ? [["unscaled", "without scaling"]] : [])),
      figure("Mean score of equal queries and keys", drawDecay(this.width, { ...setting, scaled, unscaled }),
        ...(isScaled ? [["with", "with scaling"], ["without", "without scaling"]] : [])),
      pairTable(pairs),
      ...code("In Python", rope.pythonCode(setting)),
      ...codeOfConfig(setting),
    ];
  }
}

function pairsOf(setting) {
  const unscaled = rope.geometric(setting.base, setting.rotary_dim);
  const unseen = rope.unseenFrom(setting);
  return rope.frequencies(setting).map((frequency, number) => {
    const wavelength = (2 * Math.PI) / frequency;
    const title = `pair ${number}: ${shown(wavelength)} tokens`;
    const isUnseen = unseen[number] !== null && unseen[number] < setting.target;
    return {
      number, frequency, wavelength, title, unscaledFrequency: unscaled[number], unseenFrom: unseen[number],
      unscaled: (2 * Math.PI) / unscaled[number], unseen: isUnseen,
    };
  });
}

/* Which training showed angles up to the trained length. */
function trainingOf(setting) {
  return rope.isScaled(setting) ? "training before scaling" : "training";
}

function sentenceOf(setting, pairs) {
  const { trained, target } = setting;
  const incomplete = pairs.filter(({ unseenFrom }) => unseenFrom !== null).length;
  const unseen = pairs.filter((pair) => pair.unseen).length;
  if (!incomplete) return `Each rotated pair completes a turn within ${shown(trained)} tokens.`;
  return (
    `${incomplete} of ${pairs.length} pairs complete no turn within ${shown(trained)} tokens. ` +
    `Within ${shown(target)} tokens, ${unseen || "none"} of them ${unseen === 1 ? "has" : "have"} angles ` +
    `that ${trainingOf(setting)} did not show.`
  );
}

/* A field of the setting from a text. */
function parsed(name, text) {
  const first = rope.EMPTY[name];
  if (typeof first === "string") return text;
  if (typeof first === "boolean") return text === "true";
  if (Array.isArray(first)) return text.split(/[\s,]+/).filter(Boolean).map(Number);
  return text.trim() === "" ? null : Number(text);
}

function labelled(label, control) {
  const isWide = control.localName !== "input" || label.length > 16;
  const name = element("span", {}, label);
  return element("label", { class: isWide ? "rope-field rope-wide" : "rope-field" }, name, control);
}

function select(name, options, chosen) {
  const made = element("select", { name }, ...options.map(([value, label]) => element("option", { value }, label)));
  made.value = chosen;
  return made;
}

function slider(name) {
  const { label, min, max, step } = SLIDERS[name];
  const range = element("input", { type: "range", name, min, max, step, "aria-label": `${label}, slider` });
  return element("div", { class: "rope-field rope-wide" }, element("label", { for: `rope-${name}` }, label),
    element("span", { class: "rope-slider" }, range,
      element("input", { type: "number", name, id: `rope-${name}`, step: "any", inputmode: "decimal" })));
}

function field(name) {
  if (name === "truncate") return labelled(name, element("input", { type: "checkbox", name }));
  if (Array.isArray(rope.EMPTY[name])) return labelled(name, element("textarea", { name, rows: 3 }));
  const placeholder = rope.EMPTY[name] === null ? OPTIONAL : "";
  return labelled(name, element("input", { type: "number", name, step: "any", inputmode: "decimal", placeholder }));
}

function figure(title, svg, ...legend) {
  const marks = element("ul", {}, ...legend.map(([name, meaning]) => element("li", { class: name }, meaning)));
  return element("figure", { class: "rope-figure" }, element("figcaption", {}, title), svg, marks);
}

function pairTable(pairs) {
  const header = ["pair", "frequency", "wavelength", "without scaling", "unseen from"];
  const rows = pairs.map(({ number, frequency, wavelength, unscaled, unseenFrom }) => [
    String(number), shown(frequency), frequency ? shown(wavelength) : "not rotated", shown(unscaled),
    unseenFrom === null ? "" : shown(unseenFrom),
  ]);
  const cell = (text) => element("td", {}, text);
  const table = element("table", {},
    element("thead", {}, element("tr", {}, ...header.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
  const scroll = element("div", { class: "rope-scroll", tabindex: "0", role: "region", "aria-label": "Pairs" }, table);
  const summary = element("summary", {}, "All pairs as a table");
  return element("details", {}, summary,
    element("p", {}, "Frequencies are in radians per token, wavelengths and positions in tokens."), scroll);
}

function code(title, text) {
  const button = element("button", { type: "button", class: "rope-copy" }, "Copy");
  const block = element("code", { tabindex: "0" }, text);
  button.addEventListener("click", () => copy(button, block));
  const heading = element("h2", { class: "rope-title" }, title, button);
  return [heading, element("div", { class: "highlight" }, element("pre", {}, block))];
}

function codeOfConfig(setting) {
  const block = rope.ropeParameters(setting);
  if (!block) return [element("p", {}, "A config of transformers cannot express this setting.")];
  const note = setting.rule === "ntk-aware" ? [element("p", {}, "Only Hunyuan's model types read alpha.")] : [];
  const lines = Object.entries(block).map(([name, value]) => `    "${name}": ${JSON.stringify(value)}`);
  return [...code("In config.json", `{\n  "rope_parameters": {\n${lines.join(",\n")}\n  }\n}\n`), ...note];
}

/* Copy the text. A page without HTTPS has no clipboard: then the text is selected. */
async function copy(button, block) {
  getSelection().selectAllChildren(block);
  if (navigator.clipboard) await navigator.clipboard.writeText(block.textContent);
  button.textContent = navigator.clipboard ? "Copied" : "Selected";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

/* Material's `document$` also reports pages that it loads without a reload. */
if (window.document$) window.document$.subscribe(start);
else start();
