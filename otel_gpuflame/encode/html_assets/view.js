// SPDX-License-Identifier: Apache-2.0
// The part of the tree that is drawn: a focus, its ancestors, and what is wide enough below it.

/** Narrower frames of one parent are merged into one box. */
const MIN_WIDTH_PX = 3;

/** Above this number of boxes the browser stutters, so the smallest width grows instead. */
const MAX_BOXES = 3000;

/** Boxes for children of which none is wide enough; more than one, so that each click leads to fewer children. */
const MAX_GROUPS = 20;

/** A focus is a node, or some children of a node (`members`) that were too narrow to be drawn singly. */
function focusOn(node, members = null) {
  return { node, members };
}

/** The boxes to draw as nested objects; `focus` fills `widthPx`. */
function buildView(data, values, base, focus, widthPx) {
  for (let minWidthPx = MIN_WIDTH_PX; ; minWidthPx *= 2) {
    const maxBoxes = minWidthPx < widthPx ? MAX_BOXES : Infinity;
    const root = new ViewBuilder(data, values, minWidthPx / widthPx, maxBoxes).build(base, focus);
    if (root) return root;
  }
}

class ViewBuilder {
  constructor(data, values, minShare, maxBoxes) {
    this.data = data;
    this.values = values;
    this.minShare = minShare;
    this.maxBoxes = maxBoxes;
    this.boxes = 0;
  }

  /** The outermost box, or null where there would be too many boxes. */
  build(base, focus) {
    const { tree } = this.data;
    const members = focus.members;
    const value = members ? this.#sum(members) : this.values.total[focus.node];
    this.minValue = value * this.minShare;
    let box = members ? this.#group(focus.node, members, value) : this.#node(focus.node);
    box.focus = true;
    box.children = this.#below(focus.node, members ?? this.#children(focus.node));
    const outer = [base, ...tree.path(base, focus.node)];
    if (!members) outer.pop();
    for (const node of outer.reverse()) box = { ...this.#node(node), fade: true, value, children: [box] };
    return this.boxes > this.maxBoxes ? null : box;
  }

  #children(node) {
    const { firstChild, nextSibling } = this.data.tree;
    const children = [];
    for (let child = firstChild[node]; child >= 0; child = nextSibling[child]) {
      if (this.values.total[child] > 0) children.push(child);
    }
    return children;
  }

  /** Boxes of `nodes`, widest first, then the narrow ones in groups. */
  #below(parent, nodes) {
    if (this.boxes > this.maxBoxes) return [];
    const { total } = this.values;
    const wide = nodes.filter((node) => total[node] >= this.minValue);
    wide.sort((a, b) => total[b] - total[a] || a - b);
    const boxes = wide.map((node) => {
      const box = this.#node(node);
      box.children = this.#below(node, this.#children(node));
      return box;
    });
    const narrow = nodes.filter((node) => total[node] < this.minValue);
    narrow.sort((a, b) => total[b] - total[a] || a - b);
    const room = Math.floor(this.#sum(narrow) / this.minValue);
    const groups = wide.length ? 1 : Math.max(1, Math.min(MAX_GROUPS, room));
    const size = Math.ceil(narrow.length / groups);
    for (let i = 0; i < narrow.length; i += size) {
      const members = narrow.slice(i, i + size);
      const value = this.#sum(members);
      if (value >= this.minValue / MIN_WIDTH_PX) boxes.push(this.#group(parent, members, value));
    }
    return boxes;
  }

  #sum(nodes) {
    return nodes.reduce((sum, node) => sum + this.values.total[node], 0);
  }

  #node(node) {
    this.boxes += 1;
    const frame = this.data.tree.frame[node];
    return {
      key: String(node),
      node,
      members: null,
      label: this.data.nodeLabel(node),
      layer: frame < 0 ? "target" : this.data.layer(frame),
      value: this.values.total[node],
      self: this.values.self[node],
    };
  }

  #group(parent, members, value) {
    this.boxes += 1;
    return {
      key: `${parent}+${members[0]}-${members.length}`,
      node: parent,
      members,
      label: plural(members.length, "small frame"),
      layer: "group",
      value,
      self: 0,
    };
  }
}
