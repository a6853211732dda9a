// Set light or dark before the first paint: the choice made here, or the system's.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("mr-theme") ?? "system";
    } catch {
      return "system"; // storage can be forbidden
    }
  };
  const apply = () => {
    const theme = chosen();
    const isDark = theme === "dark" || (theme === "system" && system.matches);
    document.documentElement.classList.toggle("dark", isDark);
    document.dispatchEvent(new CustomEvent("mr:theme", { detail: { theme } }));
  };
  const choose = (theme) => {
    try {
      localStorage.setItem("mr-theme", theme);
    } catch {
      // The choice then lasts as long as the page.
    }
    apply();
  };
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  apply();
  window.mrTheme = { chosen, choose };
})();
