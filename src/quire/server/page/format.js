// Formats numbers for display: counts, rates, durations, bytes.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

/** A rate with as many digits as it deserves: 3.4, 87, 1,240. */
export const rate = (value) => (value < 10 ? value.toFixed(value ? 1 : 0) : count(value));

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;

/** Seconds as µs, ms, s or minutes. */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.01) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

export const bytes = (value) =>
  value >= 1000 * 2 ** 20 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${count(value / 2 ** 20)} MiB`;

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
