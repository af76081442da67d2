// Rates an answer: a thumb of the person, with a note, and the ratings of others.
import { storedPerson, storePerson } from "./api.js";
import { Component, html, visible } from "./html.js";

const THUMB = "M2 9h3v8H2zM7 17V9l4-7c1.3 0 2 .9 2 2l-.6 4H17c1 0 1.7.9 1.5 1.9l-1.2 5.6c-.2.9-1 1.5-1.9 1.5z";
const NAMES = { up: "Good answer", down: "Bad answer" };

/** Keep a person's newest rating of an answer, which may come long after it. */
export function takeRating(log, event) {
  const input = log.inputs.find(({ answer }) => answer?.seq === event.answer);
  if (input) log.touched += 1;
  if (input) Object.assign(input, { ratings: { ...input.ratings, [event.by]: event }, revision: input.revision + 1 });
  return log;
}

/** A drawn thumb, because not every system has a font with one. */
const Thumb = ({ rating, label }) => html`<svg class=${`thumb ${rating}`} viewBox="0 0 20 20" role=${label && "img"} aria-label=${label} aria-hidden=${!label}><path d=${THUMB} /></svg>`;

/** The thumbs below an answer; without `rate`, the ratings only. */
export class Feedback extends Component {
  async give(rating, note = "", evaluate = false) {
    const { input, rate } = this.props;
    // Before it is drawn, a second click would be another rating.
    if (this.isSent) return;
    this.isSent = true;
    this.setState({ isSent: true });
    const event = await rate(input, rating, note, evaluate);
    this.isSent = false;
    if (event) storePerson(event.by);
    this.setState({ isSent: false, ...(event && { isAsking: rating === "down" && !note && !evaluate }) });
  }

  submit(event) {
    event.preventDefault();
    const note = event.target.elements.note.value.trim();
    if (note) this.give("down", note);
  }

  /** Mark the person's own rating as a case of an evaluation, and show the case. */
  async evaluate(mine) {
    if (mine && !mine.evaluate) await this.give(mine.rating, mine.note, true);
    await this.props.showCase(this.props.input);
  }

  render({ input, rate, showCase }, { isAsking, isSent = false }) {
    const ratings = Object.values(input.ratings || {});
    const mine = rate && input.ratings?.[storedPerson()];
    return html`<div class="feedback">
      ${rate && Object.keys(NAMES).map((rating) => html`<button class="quiet" aria-label=${NAMES[rating]} aria-pressed=${mine?.rating === rating} aria-disabled=${isSent}
        onClick=${() => this.give(rating)}><${Thumb} rating=${rating} /></button>`)}
      ${ratings.filter((one) => one !== mine || one.note || !rate).map(({ by, rating, note }) => html`<small><${Thumb} rating=${rating} label=${NAMES[rating]} /> ${visible(by)}${note && `: ${visible(note)}`}</small>`)}
      ${showCase && ratings.length > 0 && html`<button class="quiet" aria-disabled=${isSent} onClick=${() => this.evaluate(mine)}>${ratings.some((one) => one.evaluate) ? "In the evaluation ✓" : "Add to evaluation"}</button>`}
      ${isAsking && html`<form onSubmit=${(event) => this.submit(event)}><input name="note" aria-label="What was wrong?" placeholder="What was wrong? (optional)" />
        <button type="submit" aria-disabled=${isSent}>Send</button></form>`}
    </div>`;
  }
}
