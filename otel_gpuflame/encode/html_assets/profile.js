// SPDX-License-Identifier: Apache-2.0
// The tables of the page, and the tree of all stacks over them.

const ROOT = 0;
const ANY_LINK = -2;
const NO_LINK = -1;

/** Layers by name; the page stores indexes of its own list. */
const LAYER_LABELS = {
  target: "Target",
  python: "Python",
  native: "C++ / native",
  driver_api: "Driver API",
  os_kernel: "OS kernel",
  gpu: "GPU kernel",
  mark: "Mark",
  loss: "Loss mark",
};

/** Nodes are numbered in preorder: the subtree of n is n … end[n] - 1, and parents come before children. */
class StackTree {
  constructor(coded) {
    let size = 1;
    for (let i = 0; i < coded.length; i += 2 + coded[i + 1]) size += coded[i + 1];
    this.parent = new Int32Array(size);
    this.frame = new Int32Array(size).fill(-1);
    this.depth = new Int32Array(size);
    this.leaf = [];
    this.#decode(coded);
    this.#link(size);
  }

  #decode(coded) {
    const path = [ROOT];
    let node = ROOT;
    for (let i = 0; i < coded.length; ) {
      path.length = coded[i] + 1;
      const end = i + 2 + coded[i + 1];
      for (i += 2; i < end; i += 1) {
        node += 1;
        this.parent[node] = path[path.length - 1];
        this.depth[node] = path.length;
        this.frame[node] = coded[i];
        path.push(node);
      }
      this.leaf.push(path[path.length - 1]);
    }
  }

  #link(size) {
    this.end = new Int32Array(size);
    this.firstChild = new Int32Array(size).fill(-1);
    this.nextSibling = new Int32Array(size).fill(-1);
    for (let node = size - 1; node > ROOT; node -= 1) {
      const parent = this.parent[node];
      if (this.end[node] === 0) this.end[node] = node + 1;
      if (this.end[parent] === 0) this.end[parent] = this.end[node];
      this.nextSibling[node] = this.firstChild[parent];
      this.firstChild[parent] = node;
    }
    if (this.end[ROOT] === 0) this.end[ROOT] = 1;
  }

  /** Nodes from just below `base` to `node`, root first. */
  path(base, node) {
    const nodes = [];
    for (let at = node; at !== base && at !== ROOT; at = this.parent[at]) nodes.push(at);
    return nodes.reverse();
  }
}

class ProfileData {
  constructor(page) {
    this.page = page;
    this.tree = new StackTree(page.stacks);
    this.targetNodes = page.targets.map(() => ROOT);
    for (let node = 1; node < this.tree.end[ROOT]; node = this.tree.end[node]) {
      const target = page.targets.findIndex((t) => t.label === this.rawName(this.tree.frame[node]));
      this.targetNodes[target] = node;
    }
    this.types = [...new Set(page.series.map((series) => series.type))].sort((a, b) => a - b);
  }

  /** Self and total value of every node for one sample type and one span. */
  values(type, link) {
    const { parent, leaf } = this.tree;
    const self = new Float64Array(parent.length);
    for (const series of this.page.series) {
      if (series.type !== type) continue;
      for (let i = 0; i < series.value.length; i += 1) {
        if (link === ANY_LINK || series.link[i] === link) self[leaf[series.stack[i]]] += series.value[i];
      }
    }
    const total = self.slice();
    for (let node = parent.length - 1; node > ROOT; node -= 1) total[parent[node]] += total[node];
    return { self, total };
  }

  /** Sum of a type's values by span, largest first; a null target means all. */
  linkTotals(type, target) {
    const totals = new Map();
    for (const series of this.#series(type, target)) {
      series.link.forEach((link, i) => totals.set(link, (totals.get(link) ?? 0) + series.value[i]));
    }
    return [...totals].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  }

  typeTotal(type, target, link) {
    let total = 0;
    for (const series of this.#series(type, target)) {
      if (link === ANY_LINK) total += series.total;
      else series.link.forEach((of, i) => (total += of === link ? series.value[i] : 0));
    }
    return total;
  }

  #series(type, target) {
    return this.page.series.filter(
      (series) => series.type === type && (target === null || series.target === target),
    );
  }

  /** Value under each loss mark below `base`, counted once where marks nest. */
  lossTotals(base, total) {
    const totals = new Map();
    for (let node = base; node < this.tree.end[base]; ) {
      const frame = this.tree.frame[node];
      const lost = frame >= 0 && this.layer(frame) === "loss" && total[node] > 0;
      if (lost) totals.set(frame, (totals.get(frame) ?? 0) + total[node]);
      node = lost ? this.tree.end[node] : node + 1;
    }
    return [...totals].sort((a, b) => b[1] - a[1]);
  }

  layer(frame) {
    return this.page.layers[this.page.frames.layer[frame]];
  }

  rawName(frame) {
    return this.page.strings[this.page.frames.name[frame]];
  }

  /** A column of the frame table that holds strings, safe to show. */
  text(frame, column) {
    return visible(this.page.strings[this.page.frames[column][frame]]);
  }

  /** `file:line`, empty where the file is unknown. */
  location(frame, file = this.text(frame, "file")) {
    const line = this.page.frames.line[frame];
    return file && line > 0 ? `${file}:${line}` : file;
  }

  /** What stands in the box of a frame. */
  label(frame) {
    const name = this.text(frame, "name");
    if (this.layer(frame) !== "python") return name;
    const location = this.location(frame, baseName(this.text(frame, "file")));
    return location ? `${name} (${location})` : name;
  }

  nodeLabel(node) {
    return node === ROOT ? "all targets" : this.label(this.tree.frame[node]);
  }
}
