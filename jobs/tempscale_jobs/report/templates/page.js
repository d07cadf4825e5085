const specs = JSON.parse(document.getElementById("specs").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)"), printed = matchMedia("print");
// Charts take the page's colours, which are others in the dark and on paper.
function draw() {
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
  const config = { background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, title: { color: ink, fontWeight: 600 },
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line }, legend: { labelColor: ink, titleColor: ink }, rule: { color: ink } };
  return Promise.all(Object.entries(specs).map(([id, spec]) =>
    vegaEmbed("#" + id, { ...spec, config }, { actions: false, renderer: "svg" })));
}
draw();
dark.addEventListener("change", draw);
printed.addEventListener("change", draw);
for (const field of document.querySelectorAll(".find input")) {
  const rows = [...document.querySelectorAll("." + field.dataset.rows)], said = field.closest(".find").querySelector("output");
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
