// Charts: drawn from the data attribute, updated by the page's stream, and shown as a table on request.
(() => {
  const COLORS = ["--mr-1", "--mr-2", "--mr-3", "--mr-4", "--mr-5", "--mr-6"];
  const TABLE_ROWS = 60;
  const DAY_S = 86400;
  const charts = new Map();

  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
  const inUnit = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "usd_nano") {
      const usd = value / 1e9;
      return `$${usd !== 0 && Math.abs(usd) < 0.01 ? small.format(usd) : usd.toFixed(2)}`;
    }
    if (unit === "bytes") {
      const step = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => value >= size);
      return step ? `${number.format(value / step[0])} ${step[1]}` : `${value} B`;
    }
    if (unit === "%") return `${number.format(value)} %`;
    return (Math.abs(value) >= 1e4 ? compact : number).format(value);
  };
  const atTime = (seconds, kind) => {
    const moment = new Date(seconds * 1000);
    return kind === "bars" ? moment.toISOString().slice(0, 10) : moment.toLocaleTimeString("en-GB");
  };
  const theColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A canvas needs a color in a format that it knows; the browser converts it.
  const faded = (color, share) => {
    const paint = document.createElement("canvas").getContext("2d");
    paint.fillStyle = color;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b] = paint.getImageData(0, 0, 1, 1).data;
    return `rgb(${r} ${g} ${b} / ${share})`;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      Object.assign(this, JSON.parse(figure.dataset.chart));
      this.rowsBy = new Map(this.rows.map((row) => [row[0], row]));
      this.plotBox = figure.querySelector(".mr-plot");
      this.tableBox = figure.querySelector(".mr-scroll");
      this.showLegend();
      this.draw();
      this.resizing = new ResizeObserver(() => this.fit());
      this.resizing.observe(this.plotBox);
      const button = figure.querySelector("[data-chart-table]");
      button.addEventListener("click", () => this.toggleTable(button));
    }

    showLegend() {
      const list = this.figure.querySelector(".mr-legend");
      if (this.series.length < 2) return list.remove();
      list.replaceChildren(...this.series.map((name, index) => {
        const item = document.createElement("li");
        item.dataset.series = index;
        item.textContent = name;
        return item;
      }));
    }

    // Columns as plain values and as drawn: stacked, each is the sum of itself and those below it.
    // Bars cover each other, so the highest ones are drawn first.
    columns() {
      const sorted = [...this.rowsBy.values()].sort((a, b) => a[0] - b[0]);
      const plain = Array.from({ length: this.series.length + 1 }, (_, i) => sorted.map((row) => row[i] ?? null));
      if (this.kind === "line") return { plain, drawn: plain };
      const sum = new Array(sorted.length).fill(0);
      const [times, ...values] = plain;
      const stacked = values.map((column) => column.map((value, at) => (sum[at] += value ?? 0)));
      return { plain, drawn: [times, ...(this.kind === "bars" ? stacked.reverse() : stacked)] };
    }

    options() {
      const grid = theColor("--border");
      const quiet = theColor("--muted-foreground");
      const font = `11px ${getComputedStyle(document.body).fontFamily}`;
      const isFilled = this.kind !== "line";
      const axis = { stroke: quiet, font, ticks: { show: false }, grid: { stroke: grid, width: 1 } };
      const indexes = this.series.map((_, index) => index);
      if (this.kind === "bars") indexes.reverse();
      const drawnSeries = indexes.map((index) => {
        const color = theColor(COLORS[index % COLORS.length]);
        return {
          label: this.series[index],
          // In a stack, a series without values lies on the one below it and must not cover it.
          stroke: () => (!isFilled || this.plain[index + 1].some(Boolean) ? color : "transparent"),
          width: this.kind === "bars" ? 0 : 1.5,
          fill: isFilled ? faded(color, this.kind === "bars" ? 1 : 0.22) : undefined,
          points: { show: (plot) => plot.data[0].length < 3, size: 5 },
          paths: this.kind === "bars" ? uPlot.paths.bars({ size: [0.7, 40] }) : uPlot.paths.linear(),
        };
      });
      const bands = this.kind === "area" ? this.series.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : [];
      return {
        width: this.plotBox.clientWidth,
        height: this.height,
        padding: [12, 30, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
        scales: { x: { time: true, ...this.range() }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || (this.unit === "usd_nano" ? 1e7 : 1)) * 1.08] } },
        axes: [
          { ...axis, size: 28, grid: { show: false }, space: 70, values: (_, marks) => marks.map((at) => this.mark(at)) },
          { ...axis, size: (_, marks) => this.widthOf(marks, font), space: 36, values: (_, marks) => marks.map((value) => inUnit(value, this.unit)) },
        ],
        series: [{}, ...drawnSeries],
        bands,
        hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx)] },
      };
    }

    // As wide as its longest mark, so that none is cut off.
    widthOf(marks, font) {
      const paint = document.createElement("canvas").getContext("2d");
      paint.font = font;
      return Math.ceil(Math.max(36, ...(marks ?? []).map((mark) => paint.measureText(mark).width)) + 16);
    }

    range() {
      if (this.kind === "bars") {
        return { range: () => [Math.min(...this.rowsBy.keys()) - DAY_S / 2, Math.max(...this.rowsBy.keys()) + DAY_S / 2] };
      }
      if (!this.keeps_s) return this.rowsBy.size ? {} : { range: () => [Date.now() / 1000 - 60, Date.now() / 1000] };
      return { range: () => [Date.now() / 1000 - this.keeps_s, Date.now() / 1000] };
    }

    mark(seconds) {
      const moment = new Date(seconds * 1000);
      if (this.kind === "bars") return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
      const long = Math.max(...this.rowsBy.keys()) - Math.min(...this.rowsBy.keys()) > 2 * DAY_S;
      if (long) return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
      const isShort = this.keeps_s && this.keeps_s <= 600;
      return moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(isShort && { second: "2-digit" }) });
    }

    draw() {
      this.plot?.destroy();
      const { plain, drawn } = this.columns();
      this.plain = plain;
      const isEmpty = !this.rowsBy.size;
      this.figure.classList.toggle("is-empty", isEmpty);
      this.plot = new uPlot(this.options(), isEmpty && this.kind === "bars" ? [[0], ...this.series.map(() => [null])] : drawn, this.plotBox);
      this.tell(null);
    }

    // The legend shows the values under the pointer, or the newest ones.
    tell(at) {
      const last = (this.plain?.[0].length ?? 0) - 1;
      const index = at ?? last;
      this.figure.querySelectorAll(".mr-legend li").forEach((item, i) => {
        const value = index >= 0 ? inUnit(this.plain[i + 1][index], this.unit) : "–";
        item.textContent = `${this.series[i]} ${value}`;
      });
      const title = this.figure.querySelector(".mr-chart-title");
      const isShown = at !== null && at !== undefined && index >= 0;
      title.dataset.at = isShown ? ` · ${atTime(this.plain[0][index], this.kind)}` : "";
      if (this.series.length === 1 && isShown) title.dataset.at += ` · ${inUnit(this.plain[1][index], this.unit)}`;
    }

    add(rows) {
      for (const row of rows) this.rowsBy.set(row[0], row);
      if (this.keeps_s) {
        const oldest = Date.now() / 1000 - this.keeps_s - 5;
        for (const time of this.rowsBy.keys()) if (time < oldest) this.rowsBy.delete(time);
      }
      const { plain, drawn } = this.columns();
      this.plain = plain;
      this.figure.classList.toggle("is-empty", !this.rowsBy.size);
      this.plot.setData(drawn);
      this.tell(this.plot.cursor.idx ?? null);
      if (!this.tableBox.hidden) this.showTable();
    }

    fit() {
      const width = this.plotBox.clientWidth;
      if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
    }

    toggleTable(button) {
      const isTable = this.tableBox.hidden;
      this.tableBox.hidden = !isTable;
      this.plotBox.hidden = isTable;
      button.setAttribute("aria-pressed", String(isTable));
      if (isTable) this.showTable();
      else this.fit();
    }

    showTable() {
      const cells = (kind, texts) => {
        const row = document.createElement("tr");
        texts.forEach((text, index) => {
          const cell = document.createElement(kind);
          cell.textContent = text;
          if (index) cell.className = "num";
          if (kind === "th") cell.scope = "col";
          row.append(cell);
        });
        return row;
      };
      const table = document.createElement("table");
      table.className = "table mr-table";
      table.createTHead().append(cells("th", ["Time", ...this.series]));
      const rows = [...this.rowsBy.values()].sort((a, b) => b[0] - a[0]).slice(0, TABLE_ROWS);
      const body = table.createTBody();
      for (const row of rows) {
        body.append(cells("td", [atTime(row[0], this.kind), ...this.series.map((_, i) => inUnit(row[i + 1], this.unit))]));
      }
      this.tableBox.replaceChildren(table);
    }
  }

  const begin = (root) => {
    for (const figure of root.querySelectorAll(".mr-chart")) {
      if (!charts.has(figure)) charts.set(figure, new Chart(figure));
    }
    for (const [figure, chart] of charts) {
      if (figure.isConnected) continue;
      chart.resizing.disconnect();
      chart.plot.destroy();
      charts.delete(figure);
    }
  };
  begin(document);
  document.addEventListener("htmx:after:swap", () => begin(document));
  document.addEventListener("mr:points", (event) => {
    const { chart, rows } = JSON.parse(event.detail.data);
    charts.get(document.getElementById(chart))?.add(rows);
  });
  document.addEventListener("mr:theme", () => charts.forEach((chart) => chart.draw()));
})();
