// Draws the plots of the report: one for each experiment and metric, from the JSON that the page carries.
"use strict";
(() => {
  const errors = [];
  window.addEventListener("error", (event) => { errors.push(String(event.message)); document.body.dataset.errors = errors.join("; "); });
  document.body.dataset.errors = "";
  // A tool has one colour; its series differ in dashes and marks.
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  const MARKS = ["circle", "square", "triangle", "cross"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const data = JSON.parse(document.getElementById("data").textContent);

  const mark = (context, kind, x, y, r) => {
    context.beginPath();
    if (kind === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
    else if (kind === "square") context.rect(x - r, y - r, 2 * r, 2 * r);
    else if (kind === "triangle") { context.moveTo(x, y - r); context.lineTo(x + r, y + r); context.lineTo(x - r, y + r); context.closePath(); }
    else if (kind === "diamond") { context.moveTo(x, y - r); context.lineTo(x + r, y); context.lineTo(x, y + r); context.lineTo(x - r, y); context.closePath(); }
    else { context.moveTo(x - r, y - r); context.lineTo(x + r, y + r); context.moveTo(x + r, y - r); context.lineTo(x - r, y + r); }
    context.stroke();
  };

  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    return size !== 0 && (size < 0.001 || size >= 1e7) ? value.toExponential(3) : String(+value.toPrecision(5));
  };

  function draw(box, plot, logs) {
    box.querySelector(".uplot")?.remove();
    const ink = style("--ink"), line = style("--line");
    const all = plot.series.concat(plot.published.map((one) => ({ ...one, published: true })));
    const positive = (value, log) => (log && value <= 0 ? null : value);
    const xs = [...new Set(all.flatMap((one) => one.points.map((point) => point.x)))].filter((x) => positive(x, logs.x) !== null).sort((a, b) => a - b);
    const values = all.map((one) => xs.map((x) => {
      const point = one.points.find((each) => each.x === x);
      return point ? positive(point.y, logs.y) : null;
    }));
    const series = all.map((one) => {
      const colour = "rgb(" + one.colour.join(",") + ")";
      const kind = one.published ? "diamond" : MARKS[one.variant % MARKS.length];
      return {
        label: one.name + (one.published ? " (published)" : ""), stroke: colour, width: one.published ? 0 : 2, spanGaps: true,
        dash: DASHES[one.variant % DASHES.length],
        paths: one.published ? () => null : undefined,
        points: { show: (u, at) => {
          const context = u.ctx; context.save(); context.strokeStyle = colour; context.lineWidth = 2 * devicePixelRatio;
          for (const point of one.points) {
            if (positive(point.y, logs.y) === null || positive(point.x, logs.x) === null) continue;
            const x = u.valToPos(point.x, "x", true), y = u.valToPos(point.y, "y", true), r = (one.published ? 7 : 4) * devicePixelRatio;
            mark(context, kind, x, y, r);
            if (point.low !== undefined && point.high > point.low) {
              const bottom = u.valToPos(logs.y && point.low <= 0 ? point.y : point.low, "y", true), top = u.valToPos(point.high, "y", true);
              context.lineWidth = devicePixelRatio; context.beginPath(); context.moveTo(x, top); context.lineTo(x, bottom);
              for (const end of [top, bottom]) { context.moveTo(x - r, end); context.lineTo(x + r, end); }
              context.stroke();
            }
          }
          context.restore(); return false;
        } },
        value: (u, value, at, index) => {
          const point = index === null || index === undefined ? null : one.points.find((each) => each.x === xs[index]);
          return point ? short(point.y) + (point.low !== undefined ? " (" + short(point.low) + " to " + short(point.high) + ")" : "") : "–";
        },
      };
    });
    const text = (u, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick)));
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, values: text };
    // The x axis has ticks at the measured values, as far as there is room for their text.
    const ticksAtValues = (u, at, low, high) => {
      const scale = (x) => (logs.x ? Math.log10(x) : x);
      const width = (u.bbox.width || box.clientWidth * devicePixelRatio) / devicePixelRatio;
      let last = -Infinity;
      return xs.filter((x) => x >= low && x <= high).filter((x) => {
        const position = (scale(x) - scale(low)) / (scale(high) - scale(low) || 1) * width;
        if (position - last < 12 + 8 * short(x).length) return false;
        last = position; return true;
      });
    };
    const widest = (u, values) => 24 + 8 * Math.max(2, ...(values ?? []).map((value) => String(value ?? "").length));
    const highs = all.flatMap((one) => one.points.map((point) => Math.max(point.y, point.high ?? point.y))).concat([0]);
    const options = {
      width: Math.max(300, box.clientWidth), height: 380, cursor: { drag: { x: true, y: true } },
      scales: { x: { time: false, distr: logs.x ? 3 : 1, range: logs.x ? undefined : (u, low, high) => { const pad = (high - low || Math.abs(high) || 1) * 0.05; return [low - pad, high + pad]; } },
                y: { distr: logs.y ? 3 : 1, range: logs.y ? undefined : () => [0, Math.max(...highs) * 1.08 || 1] } },
      axes: [{ ...axis, splits: ticksAtValues }, { ...axis, size: widest }], series: [{ label: plot.x, value: (u, value) => short(value) }, ...series],
    };
    const chart = new uPlot(options, [xs, ...values], box);
    box.dataset.points = String(values.slice(0, plot.series.length).flat().filter((value) => value !== null).length);
    box.dataset.published = String(values.slice(plot.series.length).flat().filter((value) => value !== null).length);
    // The legend's entries show and hide a line, by keyboard and by mouse.
    for (const entry of chart.root.querySelectorAll(".u-series th")) {
      entry.tabIndex = 0; entry.setAttribute("role", "button");
      entry.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); entry.click(); } });
    }
    return chart;
  }

  for (const plot of data) {
    const box = document.getElementById(plot.id);
    const logs = { x: plot.logX, y: plot.logY };
    draw(box, plot, logs);
    for (const which of ["x", "y"]) {
      const button = box.querySelector("." + which);
      const show = () => button.setAttribute("aria-pressed", String(logs[which]));
      show();
      button.addEventListener("click", () => { logs[which] = !logs[which]; show(); draw(box, plot, logs); });
    }
    box.redraw = () => draw(box, plot, logs);
  }
  const again = () => data.forEach((plot) => document.getElementById(plot.id).redraw());
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(again, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", again);
  document.body.dataset.drawn = String(data.length);
})();
