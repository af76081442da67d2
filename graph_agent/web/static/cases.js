// Shows a rated answer as a case of an evaluation, which a person copies or saves.
import { Dialog } from "./dialog.js";
import { html, visible } from "./html.js";

/** Save a text as a file of this name. */
function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The case of an answer. */
export function Case({ name, yaml, copy, close }) {
  return html`<${Dialog} title="A case of an evaluation" close=${close}>
    <p class="hint"><code>graph-agent eval --from-feedback</code> runs this case with the others that people rated. To keep it beside your code, add it to a file of cases.</p>
    <pre tabindex="0">${visible(yaml)}</pre>
    <div class="actions"><button onClick=${() => copy(yaml)}>Copy</button><button class="primary" onClick=${() => save(`${name.replace(/[^\w-]+/g, "_")}.yaml`, yaml)}>Save as a file</button></div>
  </${Dialog}>`;
}
