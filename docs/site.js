// What the theme leaves out for those who read with a keyboard or a screen reader.
document$.subscribe(() => {
  const search = document.querySelector(".md-search[role=dialog]");
  if (search) search.setAttribute("aria-label", "Search");
  for (const scrolled of document.querySelectorAll(
    ".md-typeset__scrollwrap, .timeline, .md-typeset picture",
  )) {
    scrolled.setAttribute("tabindex", "0");
  }
});
// The button beside each block of code, which the theme adds later, is no landmark.
new MutationObserver(() => {
  for (const each of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    each.setAttribute("role", "presentation");
  }
}).observe(document.documentElement, { childList: true, subtree: true });
