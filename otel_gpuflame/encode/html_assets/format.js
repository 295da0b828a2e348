// SPDX-License-Identifier: Apache-2.0
// Numbers and names as people read them.

const SCALES = {
  nanoseconds: { step: 1000, units: ["ns", "µs", "ms", "s"] },
  bytes: { step: 1024, units: ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] },
};

/** Three significant digits with the unit that keeps the number below one step; counts in full. */
function formatValue(value, unit) {
  const scale = SCALES[unit];
  if (!scale) {
    const number = value.toLocaleString("en-US");
    return unit === "count" ? number : `${number} ${unit}`;
  }
  let level = 0;
  // The half is there because 999.6 would be rounded to 1000.
  while (value >= scale.step - 0.5 && level < scale.units.length - 1) {
    value /= scale.step;
    level += 1;
  }
  const digits = level === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  const number = value.toLocaleString("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
  return `${number} ${scale.units[level]}`;
}

function formatPercent(part, whole) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  if (percent > 0 && percent < 0.01) return "<0.01 %";
  return `${percent.toFixed(percent >= 99.995 ? 0 : percent >= 9.995 ? 1 : 2)} %`;
}

/** Control characters and those that reorder text, written out: a name must not look like another one. */
function visible(text) {
  return text.replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u{${character.charCodeAt(0).toString(16)}}`,
  );
}

function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}
