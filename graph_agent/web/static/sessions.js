// Lists the sessions: searched, filtered and summed up; tells a person, who asks for it, of one that waits.
import { get, ApiError, storedPerson, storePerson } from "./api.js";
import { counted, duration, html, short, Status, Still, visible } from "./html.js";

const RETRY_MS = 4000;
const LOOK_MS = 10_000;
const NOTIFY = "graph-agent-notify";
const STATES = ["waiting", "running", "interrupted", "completed", "failed", "aborted", "round_limit", "turn_limit"];
const inUrl = encodeURIComponent;

const ageOf = (updated) => (Date.now() - Date.parse(updated) < 6e4 ? "just now" : duration(Date.now() - Date.parse(updated)));
const isFork = ({ id, forked_from: origin }) => Boolean(origin) || id.includes("-fork-");

/** Return the words for a session among those with the same origin. */
export const branchLabel = (one) => [short(one.title || one.id, 40), isFork(one) && "fork", ageOf(one.updated_at)].filter(Boolean).join(" · ");

/** Return the age of a listed session, and its messages, model calls and cost, each only if its number is stored. */
const factsOf = ({ updated_at: updated, messages, model_calls: calls, cost }) =>
  [
    ageOf(updated),
    messages != null && counted(messages, "message"),
    calls != null && counted(calls, "model call"),
    cost > 0 && `cost ${cost.toPrecision(2)}`,
  ].filter(Boolean);

/** Return what the listed sessions used together, in words. */
function totalsOf(sessions, isPart) {
  const sum = (name) => sessions.reduce((total, one) => total + Number(one[name] || 0), 0);
  const cost = sum("total_cost");
  const words = [counted(sessions.length, "session"), counted(sum("model_calls"), "model call"), counted(sum("tokens"), "token"), cost > 0 && `cost ${cost.toPrecision(3)}`];
  return `${isPart ? "First " : ""}${words.filter(Boolean).join(" · ")}`;
}

/** The list of sessions; `id` is the open one. */
export class SessionList extends Still {
  state = { sessions: [], next: null, search: "", filters: {}, isOpen: false, notifies: false };

  listed = 0;
  waiting = null;

  componentDidMount() {
    this.list();
    if (globalThis.Notification?.permission === "granted" && localStorage.getItem(NOTIFY)) this.notify();
  }

  get query() {
    const { search, filters, isOpen } = this.state;
    const { status, rated, tool, cost, since, until } = filters;
    const day = (text, add) => new Date(new Date(`${text}T00:00`).getTime() + add).toISOString();
    const given = { search, status, rated, tool, min_cost: cost, since: since && day(since, 0), until: until && day(until, 864e5), totals: isOpen || undefined };
    return Object.entries(given).map(([name, value]) => (value ? `&${name}=${inUrl(value)}` : "")).join("");
  }

  async list(more = false) {
    const after = more && this.state.next ? `&after=${inUrl(this.state.next)}` : "";
    const listed = (this.listed += 1);
    try {
      const { sessions, next, person } = await get(`/memory/summaries?limit=50${after}${this.query}`);
      if (person !== storedPerson()) {
        storePerson(person);
        this.props.named();
      }
      if (listed !== this.listed) return;
      this.setState({ sessions: more ? [...this.state.sessions, ...sessions] : sessions, next });
      this.report(sessions);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status >= 400 && error.status < 429) return this.props.fail(error);
      setTimeout(() => listed === this.listed && this.list(), RETRY_MS);
    }
  }

  /** Return the title of a listed session; undefined if it is not listed. */
  titleOf(id) {
    return this.state.sessions.find((one) => one.id === id)?.title;
  }

  /** Return what marks a fork in the list. */
  forkMark(one) {
    if (!isFork(one)) return "";
    const origin = one.forked_from || one.id.split("-fork-")[0];
    return html` <span title=${`A copy of ${this.titleOf(origin) || origin}`}>· fork</span>`;
  }

  /** List again soon, once for several changes. */
  change(state) {
    this.setState(state);
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.list(), 200);
  }

  filter(name, value) {
    this.change({ filters: { ...this.state.filters, [name]: value } });
  }

  /** Report sessions that have begun to wait. */
  report(sessions) {
    const before = this.waiting;
    const waiting = sessions.filter((one) => one.activity === "waiting");
    this.waiting = new Set(waiting.map((one) => one.id));
    if (!this.state.notifies) return;
    this.plain ??= document.title;
    document.title = `${waiting.length ? `(${waiting.length}) ` : ""}${this.plain}`;
    for (const { id, title } of waiting) {
      if (!before || before.has(id) || (id === this.props.id && document.hasFocus())) continue;
      const shown = new Notification("A session waits for you", { body: title || id, tag: id });
      shown.onclick = () => (window.focus(), (location.hash = inUrl(id)));
    }
  }

  notify() {
    this.setState({ notifies: true });
    this.looking = setInterval(() => this.list(), LOOK_MS);
  }

  async toggle() {
    if (this.state.notifies) {
      clearInterval(this.looking);
      localStorage.removeItem(NOTIFY);
      document.title = this.plain ?? document.title;
      return this.setState({ notifies: false });
    }
    const permission = await globalThis.Notification?.requestPermission();
    if (permission !== "granted") return this.props.fail(new ApiError("This browser does not permit notifications from this address.", 403));
    localStorage.setItem(NOTIFY, "1");
    this.notify();
  }

  filters({ filters, notifies, sessions, next }) {
    const given = ({ target }) => this.filter(target.name, target.value);
    const tools = [...new Set(sessions.flatMap((one) => one.tools || []))].sort();
    const isSet = Object.values(filters).some(Boolean);
    return html`<details class="filters" onToggle=${({ target }) => target.open !== this.state.isOpen && this.change({ isOpen: target.open })}>
      <summary>Filter${isSet && " (on)"}</summary>
      <div class="fields">
        <label>Status <select name="status" value=${filters.status || ""} onChange=${given}><option value="">any</option>
          ${STATES.map((one) => html`<option value=${one}>${one.replace("_", " ")}</option>`)}</select></label>
        <label>Feedback <select name="rated" value=${filters.rated || ""} onChange=${given}><option value="">any</option><option value="true">rated</option></select></label>
        <label>Tool <input name="tool" list="tools" value=${filters.tool || ""} onInput=${given} /></label>
        <datalist id="tools">${tools.map((one) => html`<option value=${one} />`)}</datalist>
        <label>Cost from <input name="cost" type="number" min="0" step="any" value=${filters.cost || ""} onInput=${given} /></label>
        <label>From <input name="since" type="date" value=${filters.since || ""} onInput=${given} /></label>
        <label>To <input name="until" type="date" value=${filters.until || ""} onInput=${given} /></label>
      </div>
      ${isSet && html`<button class="quiet" onClick=${() => this.change({ filters: {} })}>Clear</button>`}
      <p class="hint totals" role="status" aria-label="Totals">${totalsOf(sessions, next)}</p>
      <label class="notify"><input type="checkbox" checked=${notifies} onChange=${() => this.toggle()} /> Notify me when a session waits</label>
    </details>`;
  }

  render({ id, pick }, state) {
    const { sessions, search, next, filters } = state;
    return html`<nav class="sessions" aria-label="Sessions">
      <div class="tools"><input type="search" placeholder="Search" aria-label="Search sessions" value=${search} onInput=${({ target }) => this.change({ search: target.value })} />
        <a class="button" href="#" title="New session (n)">New</a></div>
      ${this.filters(state)}
      <ul>${sessions.map((one) => html`<li key=${one.id}><a href=${`#${inUrl(one.id)}`} aria-current=${one.id === id ? "page" : null} onClick=${pick}>
        <strong>${visible(one.title || one.id)}</strong>
        <small><${Status} ...${one} />${this.forkMark(one)}${factsOf(one).map((fact) => html` <span>· ${fact}</span>`)}</small>
      </a></li>`)}</ul>
      ${!sessions.length && html`<p class="empty">${search || Object.values(filters).some(Boolean) ? "None matches." : "No sessions yet."}</p>`}
      ${next && html`<button class="quiet" onClick=${() => this.list(true)}>More</button>`}
    </nav>`;
  }
}
