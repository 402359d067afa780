"use strict";
// The page can be read without this; it adds what needs a click.
const one = (selector) => document.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
for (const each of all(".copy, .filter, .zoom")) each.hidden = false;

one("#copy").addEventListener("click", async () => {
  const text = one("#markdown");
  try {
    await navigator.clipboard.writeText(text.value);
    one("#copied").textContent = "copied";
  } catch {  // no permission, or not a secure context
    one(".markdown").open = true;
    text.select();
    one("#copied").textContent = document.execCommand("copy") ? "copied" : "press Ctrl-C";
  }
});

for (const figure of all(".lanes")) {
  const svg = figure.querySelector("svg[role]");
  const scroll = svg.parentNode;
  const output = figure.querySelector(".readout");
  let times = 1;
  const zoom = (factor, middle) => {
    const place = (scroll.scrollLeft + middle) / scroll.scrollWidth;
    times = Math.min(64, Math.max(1, times * factor));
    svg.setAttribute("width", `${100 * times}%`);
    figure.classList.toggle("wide1", times >= 4 && times < 16);
    figure.classList.toggle("wide2", times >= 16);
    scroll.scrollLeft = place * scroll.scrollWidth - middle;
  };
  for (const button of all("button", figure)) {
    button.addEventListener("click", () => zoom(2 ** Number(button.dataset.zoom), scroll.clientWidth / 2));
  }
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 2 : 0.5, event.clientX - scroll.getBoundingClientRect().left);
  }, { passive: false });
  svg.addEventListener("pointermove", (event) => {
    const { left, width } = svg.getBoundingClientRect();
    const { begin, end } = svg.dataset;
    const at = Number(begin) + ((event.clientX - left) / width) * (end - begin);
    const said = event.target.querySelector(":scope > title") || event.target.parentNode.querySelector(":scope > title");
    output.textContent = `${at.toFixed(3)} s  ${said && said.id === "" ? said.textContent : ""}`;
  });
}

const filter = one("#filter");
if (filter) {
  filter.addEventListener("input", () => {
    const word = filter.value.toLowerCase();
    for (const log of all(".log")) {
      let shown = log.querySelector("summary").textContent.toLowerCase().includes(word);
      for (const line of all(".line", log)) {
        line.hidden = !shown && !line.textContent.toLowerCase().includes(word);
      }
      shown ||= all(".line", log).some((line) => !line.hidden);
      log.hidden = !shown;
      if (word && shown) log.open = true;
    }
  });
  one("#unfold").addEventListener("click", () => { for (const log of all(".log")) log.open = true; });
}

addEventListener("beforeprint", () => { for (const each of all("details")) each.open = true; });
