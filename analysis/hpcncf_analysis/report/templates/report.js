"use strict";
// A table's heading sorts it; without this script the table stands in the plan's order.
function keyOf(row, column) {
  const cell = row.cells[column];
  return "key" in cell.dataset ? Number(cell.dataset.key) : cell.textContent.trim();
}
function compare(one, other) {
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return typeof one === "number" ? one - other : one.localeCompare(other, "en", {numeric: true});
}
function sort(table, column, heading) {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const each of table.tHead.querySelectorAll("[aria-sort]")) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
  rows.sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]));
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows].at(-1).querySelectorAll("th").forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, column, heading));
    heading.append(button);
  });
}
// A closed part is missing on paper.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
