// SPDX-License-Identifier: Apache-2.0
// State of the page: what is chosen, zoomed, searched and pointed at.

class Viewer {
  constructor(data) {
    this.data = data;
    this.type = data.types[0];
    this.target = data.page.targets.length > 1 ? null : 0;
    this.link = ANY_LINK;
    this.query = "";
    this.hovered = null;
    this.selected = null;
    this.zoom = (focus) => this.#zoom(focus);
    this.search = (query) => this.#search(query);
    this.chart = new FlameChart(byId("chart"), {
      hover: (box, event) => this.#hover(box, event),
      zoom: (box) => this.#zoom(focusOn(box.node, box.members)),
      select: (box) => this.#select(box),
    });
  }

  start() {
    const { page } = this.data;
    byId("title").textContent = visible(page.title);
    fillWindow(page);
    if (page.series.length === 0) {
      document.body.classList.add("empty");
      showMessage(
        "No samples in this window",
        "No GPU driver call of the recorded processes was seen in it. Check that the program used the GPU " +
          "in that time, or record for longer.",
      );
      return;
    }
    fillTargets(page);
    this.#listen();
    this.#change();
    new ResizeObserver(() => this.#draw()).observe(byId("chart"));
  }

  get base() {
    return this.target === null ? ROOT : this.data.targetNodes[this.target];
  }

  get unit() {
    return this.data.page.types[this.type].unit;
  }

  get zoomed() {
    return this.focus.node !== this.base || this.focus.members !== null;
  }

  get focusValue() {
    const { members, node } = this.focus;
    return (members ?? [node]).reduce((sum, each) => sum + this.values.total[each], 0);
  }

  #listen() {
    const onChange = (id, take) =>
      byId(id).addEventListener("change", (event) => {
        take(event.target.value);
        this.#change();
      });
    onChange("types", (value) => (this.type = Number(value)));
    onChange("target", (value) => (this.target = value === "" ? null : Number(value)));
    onChange("link", (value) => (this.link = Number(value)));
    for (const radio of document.getElementsByName("orientation")) {
      radio.addEventListener("change", () => this.#draw({ scroll: true }));
    }
    byId("search").addEventListener("submit", (event) => event.preventDefault());
    byId("query").addEventListener("input", (event) => this.#search(event.target.value));
    byId("clear").addEventListener("click", () => this.#search(""));
    document.addEventListener("keydown", (event) => this.#onKey(event));
  }

  #onKey(event) {
    const query = byId("query");
    const inQuery = document.activeElement === query;
    const finds = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f";
    // A second Ctrl-F is the browser's own.
    if ((finds || event.key === "/") && !inQuery) {
      event.preventDefault();
      query.focus();
      query.select();
    } else if (event.key === "Escape" && this.zoomed && !(inQuery && this.query)) {
      this.#zoom(focusOn(this.base));
    } else if (event.key === "Escape") {
      this.#search("");
    }
  }

  /** After another sample type, target or span: new values, and the zoom kept where there still is something. */
  #change() {
    const { end } = this.data.tree;
    this.values = this.data.values(this.type, this.link);
    const node = this.focus?.node ?? this.base;
    const inside = node >= this.base && node < end[this.base];
    this.focus = focusOn(inside && this.values.total[node] > 0 ? node : this.base);
    this.selected = null;
    this.hovered = null;
    this.chart.deselect();
    fillTypes(this);
    fillLinks(this);
    fillLosses(this, this.search);
    this.#draw({ scroll: true });
  }

  #search(query) {
    this.query = query;
    if (byId("query").value !== query) byId("query").value = query;
    this.#draw();
  }

  #zoom(focus) {
    this.focus = focus;
    this.#hover(null, null);
    this.#draw({ scroll: true });
  }

  #hover(box, event) {
    this.hovered = box;
    showTip(box && this.#describe(box), event);
    this.#showDetail();
  }

  #select(box) {
    this.selected = box;
    this.#showDetail();
  }

  #showDetail() {
    const box = this.hovered ?? this.selected;
    showDetail(box && this.#describe(box));
  }

  #draw({ scroll = false } = {}) {
    const found = this.#findMatches();
    fillPath(this, this.zoom);
    this.#showDetail();
    if (this.values.total[this.base] === 0) {
      const type = visible(this.data.page.types[this.type].label);
      showMessage(`No ${type} here`, "This target and span have no samples of this type. Choose others above.");
      fillLegend(null);
      return;
    }
    hideMessage();
    const widthPx = byId("chart").clientWidth;
    const root = buildView(this.data, this.values, this.base, this.focus, widthPx);
    const flame = document.querySelector("input[name=orientation]:checked").value === "flame";
    this.chart.render(root, { widthPx, flame, marks: (box) => this.#marks(box, found) });
    fillLegend(root);
    if (scroll) this.chart.scrollToFocus();
  }

  /** What the query means under the zoom, or null where it is empty or not a regular expression. */
  #findMatches() {
    byId("clear").hidden = this.query === "";
    byId("chart").classList.toggle("searching", this.query !== "");
    byId("query").setCustomValidity("");
    byId("result").textContent = "";
    if (this.query === "") return null;
    try {
      const frames = matchingFrames(this.data, this.query);
      const found = findMatches(this.data, this.values, frames, this.focus);
      const count = found.count === 1 ? "1 match" : `${found.count.toLocaleString("en-US")} matches`;
      const share = `${formatPercent(found.value, this.focusValue)}${this.zoomed ? " of zoom" : ""}`;
      const text = `${count} · ${formatValue(found.value, this.unit)} (${share})`;
      byId("result").textContent = found.count ? text : "no match";
      return found;
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      byId("query").setCustomValidity(error.message);
      byId("result").textContent = "not a regular expression";
      return null;
    }
  }

  #marks(box, found) {
    if (!found) return [];
    if (box.members) return box.members.some((node) => found.leads[node]) ? ["leads"] : [];
    if (found.frames[this.data.tree.frame[box.node]]) return ["match"];
    return found.leads[box.node] ? ["leads"] : [];
  }

  /** A value and its share of everything in view; when zoomed, its share of that too. */
  #amount(value) {
    const share = formatPercent(value, this.values.total[this.base]);
    const ofZoom = this.zoomed ? `, ${formatPercent(value, this.focusValue)} of zoom` : "";
    return `${formatValue(value, this.unit)} (${share}${ofZoom})`;
  }

  /** Name, place and value of a box. */
  #describe(box) {
    if (box.members) return [box.label, "too narrow to draw; click to see them", `total ${this.#amount(box.value)}`];
    const { total, self } = this.values;
    const value = `total ${this.#amount(total[box.node])} · self ${this.#amount(self[box.node])}`;
    const frame = this.data.tree.frame[box.node];
    if (frame < 0) return [box.label, "", value];
    const place = [
      LAYER_LABELS[box.layer],
      this.data.location(frame),
      this.data.text(frame, "module"),
      this.data.text(frame, "system_name"),
    ];
    return [this.data.text(frame, "name"), place.filter(Boolean).join(" · "), value];
  }
}

new Viewer(new ProfileData(JSON.parse(byId("data").textContent))).start();
