// Refreshes pages in place and draws charts. Without it, every page works when it is loaded again.
(() => {
  "use strict";

  const charts = new Map();

  function style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function series(names) {
    const colours = ["--c0", "--c1", "--c5", "--c2", "--c3", "--c4", "--c6", "--c7"];
    return names.map((name, number) => ({
      label: name,
      stroke: style(colours[number % colours.length]),
      width: 1.6,
      points: { show: false },
      value: (_, value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 })),
    }));
  }

  function clock(at) {
    return new Date(at * 1000).toLocaleTimeString("en-GB");
  }

  function draw() {
    const source = document.getElementById("chart-data");
    if (source === null) {
      return;
    }
    const data = JSON.parse(source.dataset.charts);
    for (const element of document.querySelectorAll("[data-chart]")) {
      const found = data[element.dataset.chart];
      if (found === undefined || found.at.length < 2) {
        continue;
      }
      const columns = [found.at, ...found.values];
      const known = charts.get(element);
      if (known !== undefined && known.series.length === columns.length) {
        known.setData(columns);
        continue;
      }
      element.replaceChildren();
      const axis = { stroke: style("--muted"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
      const chart = new uPlot(
        {
          width: element.clientWidth,
          height: 220,
          cursor: { sync: { key: "operations" } },
          scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
          axes: [{ ...axis, space: 76, values: (_, times) => times.map(clock) }, { ...axis, size: 56, label: element.dataset.unit, labelSize: 18 }],
          series: [{ label: "time", value: (_, at) => (at === null ? "–" : clock(at)) }, ...series(found.names)],
        },
        columns,
        element,
      );
      charts.set(element, chart);
    }
  }

  function resize() {
    for (const [element, chart] of charts) {
      if (element.isConnected) {
        chart.setSize({ width: element.clientWidth, height: 220 });
      } else {
        chart.destroy();
        charts.delete(element);
      }
    }
  }

  // A table that is wider than its card is scrolled with the keyboard too.
  function reach() {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "Table, wider than the window");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) {
          box.removeAttribute(name);
        }
      }
    }
  }

  // A region that someone reads with the keyboard, or has selected text in, is left alone.
  function isInUse(region) {
    const focused = region.querySelector(":focus-visible");
    const selection = document.getSelection();
    return focused !== null || (selection !== null && !selection.isCollapsed && region.contains(selection.anchorNode));
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    const region = event.detail.elt;
    if (region.matches("[data-live]") && (document.hidden || isInUse(region))) {
      event.preventDefault();
    }
  });
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
    document.addEventListener(name, () => document.body.classList.add("is-offline"));
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) {
      document.body.classList.remove("is-offline");
    }
  });
  document.addEventListener("htmx:afterSettle", draw);
  document.addEventListener("htmx:afterSettle", reach);
  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-submits]");
    if (form !== null) {
      form.requestSubmit();
    }
  });
  window.addEventListener("resize", resize);
  window.addEventListener("resize", reach);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [element, chart] of charts) {
      chart.destroy();
      charts.delete(element);
    }
    draw();
  });
  // Narrow windows show a part of the navigation.
  const current = document.querySelector(".side nav [aria-current]");
  if (current !== null) {
    const pages = current.parentElement;
    pages.scrollLeft = current.offsetLeft - (pages.clientWidth - current.offsetWidth) / 2;
  }
  draw();
  reach();
})();
