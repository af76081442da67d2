// Shows a person what the agent's memory holds about them: searched, edited and forgotten.
import { ApiError, get, patch, remove } from "./api.js";
import { Dialog } from "./dialog.js";
import { Component, duration, html, prose } from "./html.js";

const PAGE = 50;
const factPath = (id) => `/memory/facts/${encodeURIComponent(id)}`;

/** One fact: its text, and the form that changes it. */
class Fact extends Component {
  async save(event) {
    event.preventDefault();
    const content = event.target.elements.content.value.trim();
    if (content && (await this.props.edit(content))) this.setState({ isEdited: false });
  }

  render({ fact: { content, updated }, forget }, { isEdited }) {
    if (isEdited) {
      return html`<li><form class="fact" onSubmit=${(event) => this.save(event)}>
        <textarea name="content" rows="3" maxlength="2000" required aria-label="Text of the fact" defaultValue=${content} ref=${(box) => box?.focus()} />
        <div class="actions"><button type="button" onClick=${() => this.setState({ isEdited: false })}>Keep it</button><button type="submit" class="primary">Save</button></div>
      </form></li>`;
    }
    return html`<li class="fact"><p>${prose(content)} <small>${duration(Math.max(6e4, Date.now() - Date.parse(updated)))} ago</small></p>
      <button class="quiet" onClick=${() => this.setState({ isEdited: true })} aria-label=${`Edit: ${content}`}>Edit</button>
      <button class="quiet" onClick=${forget} aria-label=${`Forget: ${content}`}>Forget</button></li>`;
  }
}

/** The facts about the signed-in person. */
export class Facts extends Component {
  state = { facts: null, search: "", hasMore: false, error: "" };

  listed = 0;

  componentDidMount() {
    this.list();
  }

  /** Do what a person asks for; return whether the server accepted it. */
  async attempt(action) {
    try {
      await action();
      this.setState({ error: "" });
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.setState({ error: error.message });
      if (error.status === 401) this.props.fail(error);
      return false;
    }
  }

  list(offset = 0) {
    const listed = (this.listed += 1);
    return this.attempt(async () => {
      const { facts } = await get(`/memory/facts?limit=${PAGE}&offset=${offset}&search=${encodeURIComponent(this.state.search)}`);
      // The answer for a text that was typed before may come later.
      if (listed === this.listed) this.setState({ facts: offset ? [...this.state.facts, ...facts] : facts, hasMore: facts.length === PAGE });
    });
  }

  search(text) {
    this.setState({ search: text });
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.list(), 200);
  }

  replace(id, changed) {
    this.setState({ facts: this.state.facts.flatMap((one) => (one.id === id ? changed : one)) });
  }

  edit = (id, content) => this.attempt(async () => this.replace(id, await patch(factPath(id), { content })));

  forget({ id, content }) {
    if (!confirm(`Forget “${content}”?`)) return;
    this.attempt(async () => {
      await remove(factPath(id));
      this.replace(id, []);
      // The button that had the focus is gone.
      this.field.focus();
    });
  }

  render({ close }, { facts, search, hasMore, error }) {
    return html`<${Dialog} title="What the agent remembers about you" close=${close}>
      <p class="hint">It may use these facts in every session of yours. What you wrote in a session stays in that session.</p>
      <input type="search" placeholder="Search" aria-label="Search facts" ref=${(field) => (this.field = field)} value=${search} onInput=${({ target }) => this.search(target.value)} />
      ${error && html`<p class="notice error" role="alert">${error}</p>`}
      <ul class="facts" aria-label="Facts">${(facts || []).map((fact) => html`<${Fact} key=${fact.id} fact=${fact}
        edit=${(content) => this.edit(fact.id, content)} forget=${() => this.forget(fact)} />`)}</ul>
      ${facts && !facts.length && html`<p class="empty">${search ? "None matches." : "Nothing yet."}</p>`}
      ${hasMore && html`<button class="quiet" onClick=${() => this.list(facts.length)}>More</button>`}
    </${Dialog}>`;
  }
}
