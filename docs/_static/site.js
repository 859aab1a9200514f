// On a phone each row of a table of three or more columns becomes a list. A table that is wider than its page gets
// smaller letters, or where these are not enough becomes such lists, too.
document.addEventListener("DOMContentLoaded", () => {
  const narrow = window.matchMedia("(max-width: 46em)");
  for (const table of document.querySelectorAll("article table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, k) => { cell.dataset.head = heads[k] || ""; });
    }
    const tooWide = () => table.scrollWidth > table.parentElement.clientWidth + 4;
    const fit = () => {
      table.classList.remove("dense", "stacked");
      if (narrow.matches && heads.length > 2) table.classList.add("stacked");
      else if (tooWide()) table.classList.add("dense");
      if (tooWide()) table.classList.add("stacked");
    };
    fit();
    window.addEventListener("resize", fit);
  }
});

// A menu with many open entries hides what a reader looks for: the deepest open group is folded until 15 are left. A
// click opens it.
document.addEventListener("DOMContentLoaded", () => {
  const menu = document.querySelector(".sidebar-tree");
  if (!menu) return;
  const depth = (node) => (node === menu ? 0 : 1 + depth(node.parentElement));
  const isOpen = (item) => {
    const group = item.parentElement.closest("li");
    return !group || (isOpen(group) && group.querySelector(":scope > .toctree-checkbox").checked);
  };
  const open = () => [...menu.querySelectorAll("li")].filter(isOpen).length;
  const boxes = [...menu.querySelectorAll(".toctree-checkbox:checked")].sort((a, b) => depth(b) - depth(a));
  while (open() > 15 && boxes.length) boxes.shift().checked = false;
});
