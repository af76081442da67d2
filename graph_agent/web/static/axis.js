// Draws the time axis of one input: only the bars in view are nodes of the document.
import { Component, counted, duration, html, signOf, Still, wordOf, words } from "./html.js";
import { innerLength, LANE, layout, lengthOfText, nameLength, nameOf, shownName } from "./layout.js";

const MARGIN = 300;
const MARKS = { steering: "↪", limit: "⊣", loop_detected: "↻", warning: "!", error: "!" };
// Kind of a gap → its name, and what follows its duration.
const GAPS = {
  interrupted: ["Interrupted", "from the newest record of a run to the resume"],
  retry: ["Retry", "until a failed request was sent again"],
  idle: ["No recorded work", "whose cause is not in the history"],
};
const markLabel = ({ kind, text }) => `${words(kind)}: ${text}`;

function labelOf(bar) {
  const ms = bar.call?.isCut ? "cut off" : duration(bar.to - bar.from);
  if (!bar.call) return `${nameOf(bar)}, step ${bar.step.number}, ${ms}${bar.model?.tokens ? `, ${counted(bar.model.tokens, "token")}` : ""}`;
  const early = bar.call.begun === undefined ? "" : `, ${duration(bar.call.early)} of it early`;
  return `${bar.call.name}, ${wordOf(bar.call.state)}, ${ms || "no duration"}${early}, step ${bar.call.step.number}`;
}

class Bar extends Component {
  shouldComponentUpdate({ bar, selected }) {
    const old = this.props.bar;
    const shown = bar.call?.state;
    // A wait has one width, however long it lasts.
    return ["x", "y", "width", "early", "room", "edge", "before", "count", "isCut", "isUnnamed"].some((one) => bar[one] !== old[one]) || selected !== this.props.selected || this.shown !== shown || shown === "waiting" || bar.open;
  }

  render({ bar, selected, focusable, pick }) {
    this.shown = bar.call?.state;
    const label = labelOf(bar);
    const state = bar.call ? bar.call.state : bar.open ? "running" : bar.model?.record.error ? "error" : "success";
    const tokens = bar.model?.tokens;
    const facts = bar.count > 1 ? "" : `${bar.isCut ? "" : duration(bar.to - bar.from)}${tokens > 0 ? ` · ${tokens} tok` : ""}`;
    // Beside the bar, if it is longer than the bar and there is room.
    const length = nameLength(bar) + 8 + lengthOfText(facts, 11);
    const inner = innerLength(bar.width);
    const isLeft = bar.edge < bar.x;
    // A name that fits only inside stands inside, without its time.
    const free = bar.room - bar.width;
    const outside = !isLeft && length > inner && bar.width < 90 && (free >= length || (nameLength(bar) > inner && free > inner));
    const fits = !isLeft && length <= (outside ? free : inner);
    // A tooltip has the name that would be cut.
    const isHidden = bar.isUnnamed || (isLeft ? bar.edge < bar.before : bar.width < 90 && nameLength(bar) > (outside ? free : inner) + 3);
    const beside = isLeft ? `left:auto;right:${bar.width + 3}px` : `left:${bar.width + 3}px;max-width:${free}px`;
    const place = isLeft || outside ? beside : `left:5px;max-width:${inner}px`;
    return html`<button class=${`bar ${bar.kind} ${state}${selected ? " selected" : ""}${bar.depth ? " nested" : ""}${bar.isCut ? " cut" : ""}`}
      style=${`left:${bar.x}px;top:${bar.y + 2}px;width:${bar.width}px`} aria-pressed=${selected} aria-label=${label}
      title=${label} tabindex=${focusable ? 0 : -1} data-key=${bar.key} onClick=${() => pick(bar)}>
      ${bar.early > 0 && html`<span class="early" style=${`width:${bar.early}px`}></span>`}
      <span class="label" hidden=${isHidden} style=${place}>${bar.call && html`<i aria-hidden="true">${signOf(state)}</i>`}
        ${shownName(bar)} ${fits && facts && html`<small>${facts}</small>`}</span>
    </button>`;
  }
}

/** The time axis of an input; `pick` receives the bar that a person chooses. */
export class Axis extends Component {
  state = { left: 0, top: 0, width: 700, height: 320, zoom: 1 };

  componentDidMount() {
    // An observer also reports the first size.
    this.observer = new ResizeObserver(() => this.box && this.setState({ width: this.box.clientWidth, height: this.box.clientHeight }));
    this.observer.observe(this.box);
  }

  componentWillUnmount() {
    this.observer.disconnect();
  }

  componentDidUpdate() {
    const { bars, props } = this;
    // The bar of a model that worked is replaced by the one of its recorded call.
    const newest = bars.findLast((bar) => !bar.call && !bar.depth);
    const isGone = (key) => key && !bars.some((bar) => bar.key === key);
    if (isGone(props.selected)) props.pick(newest);
    const wanted = isGone(this.focused) ? newest?.key : this.wanted;
    this.wanted = undefined;
    if (wanted) this.box.querySelector(`[data-key="${CSS.escape(wanted)}"]`)?.focus({ preventScroll: true });
  }

  move(event) {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-1e9, 0], End: [1e9, 0] };
    const [dx, dy] = steps[event.key] || [];
    if (dx === undefined) return;
    event.preventDefault();
    const bars = [...this.bars].sort((left, right) => left.x - right.x || left.y - right.y);
    const at = bars.find((bar) => bar.key === event.target.dataset?.key) || bars[0];
    let next;
    if (dy) {
      const column = bars.filter((bar) => bar.column === at.column).sort((left, right) => left.y - right.y || left.x - right.x);
      next = column[Math.min(column.length - 1, Math.max(0, column.indexOf(at) + dy))];
    } else {
      next = bars[Math.min(bars.length - 1, Math.max(0, bars.indexOf(at) + dx))];
    }
    if (!next) return;
    const { box } = this;
    if (next.x < box.scrollLeft || next.x + 60 > box.scrollLeft + box.clientWidth) box.scrollLeft = next.x - 60;
    if (next.y < box.scrollTop + 40 || next.y + LANE > box.scrollTop + box.clientHeight) box.scrollTop = next.y - 120;
    this.wanted = next.key;
    this.props.pick(next);
  }

  render({ input, selected, pick, now }, { left, top, width, height, zoom }) {
    const drawing = layout(input, width, zoom, now);
    this.bars = drawing.bars;
    this.focused = this.box?.contains(document.activeElement) && document.activeElement.dataset.key;
    const isNear = (from, to) => from < left + width + MARGIN && to > left - MARGIN;
    const inView = ({ key, x, y, width: wide }) => key === selected || (isNear(x, x + wide) && y < top + height + MARGIN && y > top - MARGIN);
    const shown = drawing.bars.filter(inView);
    const focused = shown.find((bar) => bar.key === selected) || shown[0];
    return html`<section class="axis" aria-label=${`Time of input ${input.number + 1}`}>
      <div class="axis-tools">
        <button onClick=${() => this.setState({ zoom: zoom * 1.5 })} aria-label="Wider">+</button>
        <button onClick=${() => this.setState({ zoom: Math.max(1, zoom / 1.5) })} aria-label="Narrower">−</button>
      </div>
      <div class="axis-box" ref=${(box) => (this.box = box)} tabindex="-1"
        onScroll=${(event) => this.setState({ left: event.target.scrollLeft, top: event.target.scrollTop })}
        onKeyDown=${(event) => this.move(event)}>
        <div class="axis-area" style=${`width:${drawing.width}px;height:${drawing.height}px`}>
          ${drawing.columns.filter((one) => isNear(one.x, one.x + one.width)).map(
            (column) => html`<div key=${column.key} class="column" style=${`left:${column.x}px;width:${column.width}px`}>
              <b>${column.step ? (column.step.calls.length ? `Step ${column.step.number}` : "Answer") : "…"}</b>
              <span>${duration(column.end - column.begin)}</span>
              ${column.gaps.map((gap) => html`<em class="wait dead" style=${`left:${gap.x - column.x}px;width:${gap.width}px`} role="img"
                aria-label=${`${GAPS[gap.kind][0]}: ${duration(gap.ms)}`} title=${`${GAPS[gap.kind][0]}: ${duration(gap.ms)} ${GAPS[gap.kind][1]}`}><span>${gap.kind} ${duration(gap.ms)}</span></em>`)}
              ${column.waits.map((wait) => html`<em class="wait" style=${`left:${wait.x - column.x}px;width:${wait.width}px`}
                title=${`Waited for a person: ${duration(wait.ms)}`}><span>${duration(wait.ms)}</span></em>`)}
            </div>`,
          )}
          <svg class="needs" width=${drawing.width} height=${drawing.height} aria-hidden="true">
            ${drawing.lines.filter(({ x1, x2 }) => isNear(x1, x2)).map((line) => html`<path key=${line.key} d=${`M${line.x1} ${line.y1} C${line.x1 + 24} ${line.y1} ${line.x2 - 24} ${line.y2} ${line.x2} ${line.y2}`} />`)}
          </svg>
          ${shown.map((bar) => html`<${Bar} key=${bar.key} bar=${bar} selected=${bar.key === selected} focusable=${bar === focused} pick=${pick} />`)}
          ${drawing.marks.map(({ note, key, x }) => html`<span key=${key} class=${`mark ${note.kind}`} style=${`left:${x}px`}
            role="img" aria-label=${markLabel(note)} title=${markLabel(note)}>${MARKS[note.kind] || "i"}</span>`)}
        </div>
      </div>
    </section>`;
  }
}

const NODES = [
  ["__start__", 6, 30, 50],
  ["plan", 74, 30, 64],
  ["tools", 168, 6, 64],
  ["delegate", 168, 54, 64],
  ["approve", 74, 78, 64],
  ["finalize", 262, 30, 64],
  ["__end__", 352, 30, 50],
];
// Edges, and the node that they lead to and from; the others are in every agent's graph.
const EDGES = [
  ["M56 42H74M138 42H262M326 42H352"],
  ["M138 36C150 30 156 22 168 18M168 24C154 32 148 38 138 40", "tools"],
  ["M138 46C150 52 156 60 168 64M168 72C152 66 146 58 132 54", "delegate"],
  ["M100 54V78M112 78V54", "approve"],
];
const OPTIONAL = ["tools", "delegate", "approve"];

/** The agent's graph; `active` is the node that works now, and `nodes` has the optional ones that the graph has. */
export class Graph extends Still {
  render({ active, nodes }) {
    const has = (id) => !OPTIONAL.includes(id) || id === active || nodes.includes(id);
    return html`<svg class="graph" viewBox="0 0 410 108" role="img" aria-label=${`Graph; active node: ${active.replaceAll("_", "") || "none"}`}>
      ${EDGES.filter(([, id]) => has(id)).map(([path]) => html`<path d=${path} />`)}
      ${NODES.filter(([id]) => has(id)).map(([id, x, y, width]) => html`<g class=${active === id ? "active" : ""}>
        <rect x=${x} y=${y} width=${width} height="24" rx="12" />
        <text x=${x + width / 2} y=${y + 16}>${id.replaceAll("_", "")}</text>
      </g>`)}
    </svg>`;
  }
}
