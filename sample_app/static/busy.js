// Shows that a form was sent: a request that waits for a lock may take seconds. Without scripts the
// browser shows it.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented) {
    return; // the page's own script sends it
  }
  const button = event.submitter;
  event.target.setAttribute("aria-busy", "true");
  // Afterwards: the name of a disabled button would not be sent.
  setTimeout(() => {
    if (button) {
      button.disabled = true;
      button.dataset.words = button.textContent;
      button.textContent = "Working…";
    }
  });
});

// A page that comes back from the browser's cache is not busy any more.
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[aria-busy]")) {
    form.removeAttribute("aria-busy");
    for (const button of form.querySelectorAll("button[data-words]")) {
      button.disabled = false;
      button.textContent = button.dataset.words;
      delete button.dataset.words;
    }
  }
});
