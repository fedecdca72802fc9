const value = (row, at) => {
  const text = row.cells[at].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
  return [text === "-" || text === "" ? Infinity : number, text];
};
const sort = head => {
  const table = head.closest("table"), at = head.cellIndex, rows = [...table.tBodies[0].rows];
  const up = head.getAttribute("aria-sort") !== "ascending", way = up ? 1 : -1;
  rows.sort((one, other) => {
    const [a, x] = value(one, at), [b, y] = value(other, at);
    return way * (isNaN(a) || isNaN(b) ? x.localeCompare(y) : a === b ? 0 : a - b);
  });
  for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
};
for (const head of document.querySelectorAll(".sortable th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
}
const chosen = document.querySelector("select");
const show = () => {
  for (const part of document.querySelectorAll("[data-graph]"))
    part.style.display = part.dataset.graph === chosen.value ? "" : "none";
};
if (chosen) { chosen.addEventListener("change", show); show(); }
