// Builds elements. Text is always text: names from the wire never become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An HTML element: name, attributes (`onclick` and the like are listeners), children. */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Replaces what is in `place`. */
export function show(place, ...children) {
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A card with a heading; `note` explains it. */
export function card(title, note, ...children) {
  return h("section", { class: "card" }, title ? h("h2", null, title, note ? h("small", null, note) : null) : null, ...children);
}

/** Whether this is a phone's width, or a window zoomed to that. */
export const narrow = () => matchMedia("(max-width: 600px)").matches;

/** A card that a phone shows closed; what a person opened or closed stays so in this tab. */
export function fold(title, note, ...children) {
  const name = `tracer.fold.${title}`;
  const kept = sessionStorage.getItem(name);
  const open = kept ? kept === "open" : !narrow();
  const keep = (event) => sessionStorage.setItem(name, event.currentTarget.parentElement.open ? "closed" : "open");
  return h("details", { class: "card", open }, h("summary", { onclick: keep }, h("h2", null, title, note ? h("small", null, note) : null)), ...children);
}

/** What stands where there is nothing to show, and what to do about it. */
export function empty(what, advice) {
  return h("p", { class: "empty" }, h("b", null, what), " ", advice);
}
