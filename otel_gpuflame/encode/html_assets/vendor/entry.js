// SPDX-License-Identifier: Apache-2.0
// What the viewer uses of d3; the bundler drops the rest.
export { default as flamegraph } from "d3-flame-graph";
export { select } from "d3-selection";
export { timerFlush } from "d3-timer";
