// Sets the theme before the first paint; a plain script, because modules run later.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("triage-theme");
  } catch {
    // storage may be switched off; then the system decides
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
