// A dialog above the page, which takes the keyboard until it is closed.
import { Component, html } from "./html.js";

/** A dialog with a title; `close` is called once it is closed, also by Escape. */
export class Dialog extends Component {
  componentDidMount() {
    // The browser holds the focus in a modal dialog, and returns it at the end.
    this.box.showModal();
  }

  render({ title, close, children }) {
    return html`<dialog ref=${(box) => (this.box = box)} aria-label=${title} onClose=${close}
      onClick=${({ target }) => target === this.box && this.box.close()}>
      <div class="sheet"><header><h2>${title}</h2><button class="quiet" onClick=${() => this.box.close()} aria-label="Close">✕</button></header>${children}</div>
    </dialog>`;
  }
}
