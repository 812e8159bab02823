// Numbers and times as people read them. A number that is not known is a dash, never 0.

export const UNKNOWN = "–";

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 1).replace("e+", "e").replace("-", "−");
  const text = size >= 10 ** digits ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

// The same with its zeros kept, so that a live number does not change its width.
export function reading(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0 || size >= 10 ** digits || size < 1e-3) return number(value, digits);
  return value.toPrecision(digits).replace("-", "−");
}

export function times(value) {
  return reading(value, value >= 10 ? 3 : 2);
}

export function share(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const percent = value * 100;
  return `${percent !== 0 && percent < 0.1 ? number(percent, 2) : Number(percent.toPrecision(3))}%`;
}

export function count(value) {
  return value.toLocaleString("en");
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function age(seconds) {
  if (seconds < 2) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export function clock(unixSeconds) {
  const date = new Date(unixSeconds * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return today ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

export function words(slug) {
  return slug.replaceAll("_", " ");
}

export function capital(text) {
  return text === "" ? text : text[0].toUpperCase() + text.slice(1);
}
