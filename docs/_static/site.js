// A table that is wider than its page gets smaller letters; where these are not enough, each row becomes a list.
document.addEventListener("DOMContentLoaded", () => {
  const narrow = window.matchMedia("(max-width: 46em)");
  for (const table of document.querySelectorAll("article table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, k) => { cell.dataset.head = heads[k] || ""; });
    }
    const fit = () => {
      table.classList.remove("dense", "stacked");
      for (const style of ["dense", "stacked"]) {
        if (table.scrollWidth > table.parentElement.clientWidth + 4) table.classList.add(style);
      }
      if (narrow.matches && table.classList.contains("arguments")) table.classList.add("stacked");
    };
    fit();
    window.addEventListener("resize", fit);
  }
});
