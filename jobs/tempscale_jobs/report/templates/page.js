const specs = JSON.parse(document.getElementById("specs").textContent), main = document.querySelector("main");
// Colours are the page's own names of them, which are others in the dark and on paper.
const ink = "var(--ink)", line = "var(--line)";
const config = { background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, title: { color: ink, fontWeight: 600 },
  axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line }, legend: { labelColor: ink, titleColor: ink }, rule: { color: ink } };
// What is folded has no width yet: it will be as wide as the column.
const widthOf = id => document.getElementById(id).clientWidth || main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft);
const fitted = (spec, width) => spec.width === "container"
  ? { ...spec, width, autosize: { type: "fit-x", contains: "padding" }, config } : { ...spec, ...(width < 720 ? { columns: 1 } : {}), config };
const draw = () => Promise.all(Object.entries(specs).map(([id, spec]) => vegaEmbed(`[id="${id}"]`, fitted(spec, widthOf(id)), { actions: false, renderer: "svg" })));
draw().then(() => document.querySelectorAll(".data").forEach(data => data.open = false));
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 200); });
for (const field of document.querySelectorAll(".find input")) {
  const rows = [...field.closest(".section").querySelectorAll("tbody tr")], said = field.closest(".find").querySelector("output");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      left += !row.hidden;
    }
    said.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
}
