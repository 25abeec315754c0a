// What the theme leaves out for those who read with a keyboard or a screen reader.
document$.subscribe(() => {
  const search = document.querySelector(".md-search[role=dialog]");
  if (search) search.setAttribute("aria-label", "Search");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    table.setAttribute("tabindex", "0");
  }
});
