// SPDX-License-Identifier: Apache-2.0
// Which frames a query means, and how much value lies under them.

const SEARCHED_COLUMNS = ["name", "system_name", "file", "module"];

/** A predicate over text: plain text ignoring case, or a regular expression between slashes. Throws SyntaxError. */
function textMatcher(query) {
  const pattern = /^\/(.+)\/$/.exec(query);
  if (pattern) {
    const expression = new RegExp(pattern[1], "i");
    return (text) => expression.test(text);
  }
  const wanted = query.toLowerCase();
  return (text) => text.toLowerCase().includes(wanted);
}

/** For each frame 1 where its label, name, file or module matches. */
function matchingFrames(data, query) {
  const matches = textMatcher(query);
  const { strings, frames } = data.page;
  const byString = strings.map((text) => (text !== "" && matches(text) ? 1 : 0));
  return frames.name.map((_, frame) =>
    SEARCHED_COLUMNS.some((column) => byString[frames[column][frame]]) || matches(data.label(frame)) ? 1 : 0,
  );
}

/** Matches below the focus: their number, their value (nested ones once), and which nodes lead to one. */
function findMatches(data, values, frames, focus) {
  const { tree } = data;
  const leads = new Uint8Array(tree.parent.length);
  const result = { frames, leads, count: 0, value: 0 };
  for (const top of focus.members ?? [focus.node]) {
    let counted = top;
    for (let node = top; node < tree.end[top]; node += 1) {
      if (!(values.total[node] > 0) || !frames[tree.frame[node]]) continue;
      leads[node] = 1;
      result.count += 1;
      if (node < counted) continue;
      result.value += values.total[node];
      counted = tree.end[node];
    }
  }
  for (let node = tree.parent.length - 1; node > ROOT; node -= 1) {
    if (leads[node]) leads[tree.parent[node]] = 1;
  }
  return result;
}
