// SPDX-License-Identifier: Apache-2.0
// What stands around the chart: filled anew from the state of the viewer each time that it changes.

/** Spans that the list offers; the rest is counted. */
const MAX_LISTED_LINKS = 100;

/** Innermost steps of the zoom path that are written out. */
const PATH_TAIL = 3;

const byId = (id) => document.getElementById(id);

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function button(text, onClick, attributes = {}) {
  const made = element("button", text, { type: "button", ...attributes });
  made.addEventListener("click", onClick);
  return made;
}

function fillWindow({ window: span, targets }) {
  const parts = ["no window"];
  if (span) parts.splice(0, 1, span.start_utc, `${formatValue(span.duration_ns, "nanoseconds")} window`);
  if (targets.length > 1) parts.push(plural(targets.length, "target"));
  byId("window").textContent = parts.join(" · ");
}

function fillTargets({ targets, links }) {
  byId("target-control").hidden = targets.length < 2;
  byId("link-control").hidden = links.length === 0;
  const options = targets.map((target, i) => element("option", visible(target.label), { value: i }));
  byId("target").replaceChildren(element("option", "all", { value: "" }), ...options);
}

/** One choice for each sample type, with the total that the chosen target and span have of it. */
function fillTypes({ data, type: chosen, target, link }) {
  const labels = data.types.map((type) => {
    const { label: name, unit } = data.page.types[type];
    const radio = element("input", "", { type: "radio", name: "type", value: type });
    radio.checked = type === chosen;
    const text = element("span", visible(name));
    text.append(element("b", formatValue(data.typeTotal(type, target, link), unit)));
    const label = element("label", "");
    label.append(radio, text);
    return label;
  });
  const box = byId("types");
  const focused = box.contains(document.activeElement);
  box.replaceChildren(box.querySelector("legend"), ...labels);
  if (focused) box.querySelector("input:checked").focus();
}

/** Spans by value; the chosen one stays in the list even where it has none. */
function fillLinks({ data, type, target, link: chosen, unit }) {
  const totals = data.linkTotals(type, target);
  const listed = totals.slice(0, MAX_LISTED_LINKS);
  if (chosen !== ANY_LINK && !listed.some(([link]) => link === chosen)) {
    listed.push(totals.find(([link]) => link === chosen) ?? [chosen, 0]);
  }
  const options = listed.map(([link, value]) =>
    element("option", `${linkName(data.page.links, link)} · ${formatValue(value, unit)}`, { value: link }),
  );
  if (totals.length > listed.length) {
    const text = `${plural(totals.length - listed.length, "smaller span")} not listed`;
    options.push(element("option", text, { disabled: "" }));
  }
  byId("link").replaceChildren(element("option", "all", { value: ANY_LINK }), ...options);
  byId("link").value = String(chosen);
}

function linkName(links, link) {
  if (link === NO_LINK) return "no span";
  const [trace, span] = links[link];
  return `${span} (trace ${trace.slice(0, 8)}…)`;
}

function fillLosses({ data, base, unit, values }, search) {
  const chips = data.lossTotals(base, values.total).map(([frame, value]) => {
    const text = `${data.text(frame, "name")} ${formatPercent(value, values.total[base])}`;
    const title = `${formatValue(value, unit)} under this mark; click to find it`;
    return button(text, () => search(data.rawName(frame)), { title });
  });
  byId("losses").replaceChildren(...(chips.length ? chips : ["no loss marks"]));
}

/** Where the zoom is, each step a way back out. */
function fillPath({ data, base, focus, zoomed }, zoom) {
  if (!zoomed) {
    byId("path").replaceChildren(element("span", "Click a frame to zoom in", { class: "quiet" }));
    return;
  }
  const nodes = [base, ...data.tree.path(base, focus.node)];
  const shown = nodes.length > PATH_TAIL + 1 ? [base, null, ...nodes.slice(-PATH_TAIL)] : nodes;
  const steps = shown.map((node) =>
    node === null ? element("span", "…") : button(data.nodeLabel(node), () => zoom(focusOn(node))),
  );
  if (focus.members) steps.push(element("span", plural(focus.members.length, "small frame")));
  const reset = button("Reset zoom", () => zoom(focusOn(base)), { id: "reset", "aria-keyshortcuts": "Escape" });
  byId("path").replaceChildren(reset, ...steps);
}

/** Only the layers that are drawn. */
function fillLegend(root) {
  const layers = new Set();
  const visit = (box) => {
    layers.add(box.layer);
    box.children?.forEach(visit);
  };
  if (root) visit(root);
  const entries = Object.entries(LAYER_LABELS).filter(([layer]) => layers.has(layer));
  byId("legend").replaceChildren(...entries.map(([layer, label]) => element("li", label, { class: layer })));
}

function showMessage(title, text) {
  byId("message").replaceChildren(element("h2", title), element("p", text));
  byId("message").hidden = false;
  byId("chart").hidden = true;
}

function hideMessage() {
  byId("message").hidden = true;
  byId("chart").hidden = false;
}

/** The line at the bottom; null texts show how to use it. */
function showDetail(texts) {
  const shown = texts ?? ["", "Point at a frame, or walk with the arrow keys, to read it in full", ""];
  ["detail-name", "detail-place", "detail-value"].forEach((id, i) => (byId(id).textContent = shown[i]));
}

/** The box at the pointer, kept inside the window; null texts hide it. */
function showTip(texts, event) {
  const tip = byId("tip");
  tip.hidden = texts === null;
  if (!texts) return;
  texts.forEach((text, i) => (tip.children[i].textContent = text));
  const gapPx = 14;
  const { offsetWidth, offsetHeight } = tip;
  const left = Math.min(event.clientX + gapPx, window.innerWidth - offsetWidth - gapPx);
  const below = event.clientY + gapPx;
  const fits = below + offsetHeight + gapPx < window.innerHeight;
  tip.style.left = `${Math.max(gapPx, left)}px`;
  tip.style.top = `${fits ? below : Math.max(gapPx, event.clientY - offsetHeight - gapPx)}px`;
}
