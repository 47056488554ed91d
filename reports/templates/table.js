"use strict";
{
  const headings = [...document.querySelectorAll(".cells thead th")];
  headings.forEach((th, column) => th.firstElementChild.addEventListener("click", () => {
    const descending = th.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = th.closest("table").tBodies[0];
    const key = (row) => row.cells[column].dataset.sort;
    const compare = (a, b) => key(a) === undefined
      ? a.cells[column].textContent.localeCompare(b.cells[column].textContent)
      : Number(key(a)) - Number(key(b));
    body.append(...[...body.rows].sort((a, b) => (descending ? -1 : 1) * compare(a, b)));
  }));
}
