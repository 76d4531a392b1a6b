/* The formulas of rope_xp.frequencies, on settings: plain objects with the fields of `EMPTY`. Nothing here draws.

Names are those of the config's keys, except that `trained` is the original length and `target` is the length of the
sequence. tests/docs compares every function with Python. */

export const EMPTY = {
  rule: "default", base: 10000, head_dim: 128, rotary_dim: 128, layout: "half", trained: 8192, target: 32768,
  factor: 4, mixed_b: 1, beta_fast: 32, beta_slow: 1, truncate: true, mscale: null, mscale_all_dim: null,
  attention_factor: null, low_freq_factor: 1, high_freq_factor: 4, partial_rotary_factor: 0.25,
  short_factor: [], long_factor: [], short_mscale: null, long_mscale: null,
};

/* Each rule: its class in rope_xp, its parameters, and what it needs of the lengths, by their names in the class. Of
   rules that configs of transformers do not have, `isStandard` is false. */
export const RULES = {
  default: { label: "none", fields: [], lengths: {} },
  linear: { label: "linear (position interpolation)", name: "LinearScaling", fields: ["factor"], lengths: {} },
  "ntk-aware": { label: "NTK-aware", name: "NTKScaling", fields: ["factor"], lengths: {} },
  ntk: { label: "NTK, mixed", name: "MixedNTKScaling", fields: ["factor", "mixed_b"], lengths: {}, isStandard: false },
  dynamic: {
    label: "dynamic NTK", name: "DynamicNTKScaling", fields: ["factor"],
    lengths: { max_position_embeddings: "trained", seq_len: "target" },
  },
  yarn: {
    label: "YaRN", name: "YarnScaling", lengths: { original_max_position_embeddings: "trained" },
    fields: ["factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"],
  },
  longrope: {
    label: "LongRoPE", name: "LongRopeScaling",
    fields: ["short_factor", "long_factor", "factor", "attention_factor", "short_mscale", "long_mscale"],
    lengths: { original_max_position_embeddings: "trained", seq_len: "target" },
  },
  llama3: {
    label: "Llama 3", name: "Llama3Scaling", fields: ["factor", "low_freq_factor", "high_freq_factor"],
    lengths: { original_max_position_embeddings: "trained" },
  },
  proportional: {
    label: "proportional", name: "ProportionalScaling", fields: ["partial_rotary_factor", "factor"], lengths: {},
  },
};

const DEFAULTS = { beta_fast: 32, beta_slow: 1, truncate: true, mixed_b: 1 };
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/* base ** (-2 j / rotary_dim) for each pair j, in radians per token. */
export function geometric(base, rotaryDim) {
  return Array.from({ length: rotaryDim / 2 }, (_, j) => base ** ((-2 * j) / rotaryDim));
}

const ntkBase = (s, factor) => s.base * factor ** (s.rotary_dim / (s.rotary_dim - 2));

const FREQUENCIES = {
  default: (s, w) => w,
  linear: (s, w) => w.map((each) => each / s.factor),
  "ntk-aware": (s) => geometric(ntkBase(s, s.factor), s.rotary_dim),
  ntk: (s, w) => {
    const a = Math.log(s.factor) / (s.rotary_dim / 2) ** s.mixed_b;
    return w.map((each, j) => each * Math.exp(-a * (j + 1) ** s.mixed_b));
  },
  dynamic: (s) => {
    const length = Math.max(s.target, s.trained);
    return geometric(ntkBase(s, (s.factor * length) / s.trained - (s.factor - 1)), s.rotary_dim);
  },
  yarn: (s, w) => {
    const ramp = yarnRamp(s);
    return w.map((each, j) => (each / s.factor) * ramp(j) + each * (1 - ramp(j)));
  },
  longrope: (s, w) => w.map((each, j) => each / (s.target > s.trained ? s.long_factor : s.short_factor)[j]),
  llama3: (s, w) => w.map((each) => {
    const revolutions = (s.trained * each) / (2 * Math.PI); // over the trained length
    const width = s.high_freq_factor - s.low_freq_factor || 1;
    let kept = (revolutions - s.low_freq_factor) / width;
    if (revolutions < s.low_freq_factor) kept = 0;
    if (revolutions > s.high_freq_factor) kept = 1;
    return ((1 - kept) * each) / s.factor + kept * each;
  }),
  proportional: (s, w) => {
    const rotated = Math.floor(Math.floor(s.partial_rotary_factor * s.rotary_dim) / 2);
    return w.map((each, j) => (j < rotated ? each / s.factor : 0));
  },
};

/* For pair j: 0 if YaRN keeps its frequency, 1 if it divides it by the factor. */
function yarnRamp(s) {
  const pairWith = (revolutions) =>
    (s.rotary_dim * Math.log(s.trained / (revolutions * 2 * Math.PI))) / (2 * Math.log(s.base));
  let [first, last] = [pairWith(s.beta_fast), pairWith(s.beta_slow)];
  if (s.truncate) [first, last] = [Math.floor(first), Math.ceil(last)];
  [first, last] = [Math.max(first, 0), Math.min(last, s.rotary_dim - 1)];
  if (first === last) last += 0.001;
  return (j) => clamp((j - first) / (last - first), 0, 1);
}

/* The frequency of each pair, in radians per token. */
export function frequencies(s) {
  return FREQUENCIES[s.rule](s, geometric(s.base, s.rotary_dim));
}

/* Whether the rule changes the frequency of a pair that turns. Dynamic NTK does not at the lengths of training. */
export function isScaled(s) {
  const unscaled = geometric(s.base, s.rotary_dim);
  return frequencies(s).some((w, j) => w && Math.abs(unscaled[j] / w - 1) > 1e-9);
}

/* The number by which sines and cosines are multiplied. */
export function attentionFactor(s) {
  const mscale = (k) => 0.1 * k * Math.log(s.factor) + 1;
  if (s.rule !== "yarn" && s.rule !== "longrope") return 1;
  if (s.attention_factor !== null) return s.attention_factor;
  if (s.rule === "yarn") return s.mscale && s.mscale_all_dim ? mscale(s.mscale) / mscale(s.mscale_all_dim) : mscale(1);
  const given = s.target > s.trained ? s.long_mscale : s.short_mscale;
  return given ?? Math.sqrt(1 + Math.log(s.factor ?? 1) / Math.log(s.trained));
}

/* The first position at which a pair has an unseen angle; null if it completes a turn within the trained length. */
export function unseenFrom(s) {
  const unscaled = geometric(s.base, s.rotary_dim);
  return frequencies(s).map((w, j) => {
    if (!w || (2 * Math.PI) / unscaled[j] <= s.trained) return null;
    return Math.ceil(Number(((unscaled[j] / w) * s.trained).toFixed(6)));
  });
}

/* The mean of cos(distance * w) over the distances first, first + 1, ..., last, by the sum of a geometric series. */
function meanCosine(w, first, last) {
  const count = last - first + 1;
  if (count === 1 || !w) return Math.cos(w * first);
  return ((Math.sin((count * w) / 2) / Math.sin(w / 2)) * Math.cos((w * (first + last)) / 2)) / count;
}

/* The mean score of equal queries and keys: points [distance, score], as rope_xp.plot.decay draws them. */
export function decay(inverseFrequencies, m, distance) {
  const width = Math.max(1, Math.floor(distance / 128));
  const points = [[0, m * m]];
  for (let first = 1; first + width - 1 <= distance; first += width) {
    const last = first + width - 1;
    const sum = inverseFrequencies.reduce((total, w) => total + meanCosine(w, first, last), 0);
    points.push([(first + last) / 2, (m * m * sum) / inverseFrequencies.length]);
  }
  return points;
}

const LEAST = { base: 1.01, trained: 2, target: 2, factor: 1, mixed_b: 0.01, beta_fast: 0.01, beta_slow: 0.01,
  attention_factor: 0.01, low_freq_factor: 0.01, high_freq_factor: 0.01, partial_rotary_factor: 0.01,
  short_mscale: 0.01, long_mscale: 0.01 };
const OPTIONAL = ["attention_factor", "mscale", "mscale_all_dim", "short_mscale", "long_mscale"];

/* Requirements that a setting does not meet, as sentences. A setting with none has frequencies. */
export function problems(s) {
  const used = RULES[s.rule].fields;
  const pairs = s.rotary_dim / 2;
  const isOptional = (name) => OPTIONAL.includes(name) || (s.rule === "longrope" && name === "factor");
  const isNumber = (name) => !Array.isArray(s[name]) && name !== "truncate";
  const numbers = ["base", "trained", "target", ...used].filter(isNumber);
  const isBad = (name) => (s[name] === null ? !isOptional(name) : !(s[name] >= (LEAST[name] ?? 0) && s[name] < 1e15));
  const lists = used.filter((name) => Array.isArray(s[name]));
  const requirements = [
    ...numbers.map((name) => [isBad(name), `${name} must be a number, at least ${LEAST[name] ?? 0}.`]),
    [!(pairs >= 2 && Number.isInteger(pairs)), "rotary_dim must be an even number, at least 4."],
    [!(s.head_dim >= s.rotary_dim && s.head_dim % 2 === 0), "head_dim must be even, and at least rotary_dim."],
    [s.trained % 1 || s.target % 1, "Lengths must be whole numbers of tokens."],
    [used.includes("beta_slow") && s.beta_fast < s.beta_slow, "beta_fast must be at least beta_slow."],
    [
      used.includes("low_freq_factor") && s.high_freq_factor < s.low_freq_factor,
      "high_freq_factor must be at least low_freq_factor.",
    ],
    [used.includes("partial_rotary_factor") && s.partial_rotary_factor > 1, "partial_rotary_factor must be at most 1."],
    ...lists.map((name) => [
      s[name].length !== pairs || !s[name].every((each) => each > 0),
      `${name} must be ${pairs} positive numbers, one for each pair; it has ${s[name].length}.`,
    ]),
    [
      s.rule === "longrope" && (s.short_mscale === null) !== (s.long_mscale === null),
      "short_mscale and long_mscale must be given together.",
    ],
    [
      s.rule === "longrope" && s.factor === null && s.attention_factor === null && s.short_mscale === null,
      "factor, attention_factor, or short_mscale and long_mscale must be given.",
    ],
  ];
  return requirements.filter(([fails]) => fails).map(([, sentence]) => sentence);
}

function pythonValue(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  return Number.isInteger(value) && Math.abs(value) < 1e21 ? `${value}.0` : String(value);
}

/* The arguments of the rule's class: those that are given and differ from its defaults. */
function ruleArguments(s) {
  const { fields, lengths } = RULES[s.rule];
  const given = fields.filter((name) => s[name] !== null && s[name] !== DEFAULTS[name]);
  const numbers = given.map((name) => `${name}=${pythonValue(s[name])}`);
  return [...numbers, ...Object.entries(lengths).map(([name, length]) => `${name}=${s[length]}`)];
}

/* A program that makes this embedding with rope_xp. */
export function pythonCode(s) {
  const { name } = RULES[s.rule];
  const width = s.rotary_dim === s.head_dim ? "" : `    rotary_dim=${s.rotary_dim},\n`;
  const scaling = name ? `scaling = ${name}(\n    ${ruleArguments(s).join(",\n    ")},\n)\n` : "";
  return (
    `from rope_xp import RotaryEmbedding${name ? `, ${name}` : ""}\n\n${scaling}rope = RotaryEmbedding(\n` +
    `    head_dim=${s.head_dim},\n    layout="${s.layout}",\n    base=${pythonValue(s.base)},\n${width}` +
    `${name ? "    scaling=scaling,\n" : ""})\nprint(rope.explain(context=${s.target}, trained_length=${s.trained}))\n`
  );
}

/* The `rope_parameters` of a config of transformers 5, as `rope.to_config()` gives them; null if it cannot. */
export function ropeParameters(s) {
  const { fields, lengths, isStandard = true } = RULES[s.rule];
  const isPartial = s.rotary_dim !== s.head_dim;
  if (!isStandard || (s.rule === "proportional" && isPartial)) return null;
  const isNTK = s.rule === "ntk-aware";
  const block = { rope_type: isNTK ? "dynamic" : s.rule, rope_theta: s.base };
  if (isNTK) block.alpha = s.factor;
  for (const name of fields) if (s[name] !== null) block[name] = isNTK ? 1 : s[name];
  if (lengths.original_max_position_embeddings) block.original_max_position_embeddings = s.trained;
  if (isPartial) block.partial_rotary_factor = s.rotary_dim / s.head_dim;
  return block;
}
