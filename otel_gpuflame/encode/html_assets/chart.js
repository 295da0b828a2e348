// SPDX-License-Identifier: Apache-2.0
// Draws boxes with d3-flame-graph and reports what the reader points at, clicks and walks to.

const ROW_PX = 20;
const SHADES = 3;

/** Ticks that a transition of no duration takes: it is scheduled, started, and ended. */
const TRANSITION_TICKS = 3;

/** A steady number for a name, so that neighbours differ and a function keeps its shade. */
function shadeOf(label) {
  let hash = 0;
  for (let i = 0; i < label.length; i += 1) hash = (hash * 31 + label.charCodeAt(i)) >>> 0;
  return hash % SHADES;
}

class FlameChart {
  /** `handlers`: hover(box, event) with null when the pointer leaves, zoom(box), select(box). */
  constructor(host, handlers) {
    this.host = host;
    this.handlers = handlers;
    this.selectedKey = null;
    this.boxes = [];
    // In the library's place: it would zoom inside the boxes drawn, and we draw new ones.
    host.addEventListener("click", (event) => this.#onClick(event), true);
    host.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Draws the tree under `root`. `marks(box)` gives the classes that search puts on a box. */
  render(root, { widthPx, flame, marks }) {
    this.flame = flame;
    this.host.classList.toggle("flame", flame);
    const depth = (box) => 1 + Math.max(0, ...(box.children ?? []).map(depth));
    const heightPx = depth(root) * ROW_PX;
    if (!this.chart) this.#create(root, widthPx, heightPx);
    this.chart.width(widthPx).height(heightPx).inverted(!flame).update(root);
    this.#finishTransitions();
    ogfFlame.select(this.host).select("svg").attr("height", heightPx);
    this.#decorate(marks);
  }

  /** The library always moves boxes, and lets new ones grow for 250 ms; old and new would stand side by side. */
  #finishTransitions() {
    for (let tick = 0; tick < TRANSITION_TICKS; tick += 1) ogfFlame.timerFlush();
    ogfFlame
      .select(this.host)
      .selectAll("g.frame rect")
      .interrupt()
      .attr("width", function ofBox() {
        return this.parentNode.getAttribute("width");
      });
  }

  /** Puts the focused box in sight, with two of its ancestors. */
  scrollToFocus() {
    const row = this.boxes.find(({ node }) => node.data.focus).node.depth;
    const offset = Math.max(0, row - 2) * ROW_PX;
    const { scrollHeight, clientHeight } = this.host;
    this.host.scrollTop = this.flame ? scrollHeight - clientHeight - offset : offset;
  }

  deselect() {
    this.selectedKey = null;
    this.host.removeAttribute("aria-activedescendant");
  }

  #create(root, widthPx, heightPx) {
    const tip = () => undefined;
    tip.show = (event, node) => this.handlers.hover(node.data, event);
    tip.hide = () => this.handlers.hover(null, null);
    this.chart = ogfFlame
      .flamegraph()
      .width(widthPx)
      .height(heightPx)
      .cellHeight(ROW_PX)
      .transitionDuration(0)
      .getName((node) => node.data.label)
      .tooltip(tip);
    ogfFlame.select(this.host).datum(root).call(this.chart);
  }

  #decorate(marks) {
    this.boxes = [];
    const { boxes, selectedKey } = this;
    ogfFlame
      .select(this.host)
      .selectAll("g.frame")
      .each(function describe(node) {
        const box = node.data;
        boxes.push({ node, element: this });
        this.id = `box-${box.key}`;
        this.classList.add(box.layer, `shade${shadeOf(box.label)}`, ...marks(box));
        this.classList.toggle("selected", box.key === selectedKey);
        this.setAttribute("role", "treeitem");
        this.setAttribute("aria-level", String(node.depth + 1));
        this.setAttribute("aria-label", box.label);
        this.setAttribute("aria-selected", String(box.key === selectedKey));
      });
    this.host.querySelector("g.selected")?.parentNode.append(this.host.querySelector("g.selected"));
  }

  #onClick(event) {
    event.stopPropagation();
    const element = event.target.closest("g.frame");
    const found = this.boxes.find((each) => each.element === element);
    if (!found) return;
    this.host.focus({ preventScroll: true });
    this.#select(found);
    this.handlers.zoom(found.node.data);
  }

  #select(found) {
    this.selectedKey = found.node.data.key;
    // Later siblings are painted over the outline of earlier ones.
    found.element.parentNode.append(found.element);
    for (const { element } of this.boxes) {
      const selected = element === found.element;
      element.classList.toggle("selected", selected);
      element.setAttribute("aria-selected", String(selected));
    }
    this.host.setAttribute("aria-activedescendant", found.element.id);
    this.handlers.select(found.node.data);
  }

  #onKey(event) {
    const current = this.boxes.find(({ node }) => node.data.key === this.selectedKey);
    const steps = {
      ArrowUp: () => this.#vertical(current, this.flame),
      ArrowDown: () => this.#vertical(current, !this.flame),
      ArrowLeft: () => this.#horizontal(current, -1),
      ArrowRight: () => this.#horizontal(current, 1),
      Home: () => this.#outermost(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (current && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      this.handlers.zoom(current.node.data);
    } else if (Object.hasOwn(steps, event.key)) {
      event.preventDefault();
      const next = current ? steps[event.key]() : this.#outermost();
      if (!next) return;
      this.#select(next);
      next.element.scrollIntoView({ block: "nearest" });
    }
  }

  #outermost() {
    return this.boxes.find(({ node }) => node.depth === 0);
  }

  /** The widest child, or the parent. */
  #vertical(current, deeper) {
    const next = deeper ? current.node.children?.[0] : current.node.parent;
    return this.boxes.find(({ node }) => node === next);
  }

  /** The neighbour in the same row, whoever its parent is. */
  #horizontal(current, step) {
    const row = this.boxes.filter(({ node }) => node.depth === current.node.depth);
    row.sort((a, b) => a.node.x0 - b.node.x0);
    return row[row.indexOf(current) + step];
  }
}
