"""Style and script of the report: plain, small, and written into the page."""

N_SERIES, N_SHADES = 8, 10
"""Colours of lines and devices, and shades of heat maps."""
LIGHT = ("#2166ac", "#d95f02", "#1b9e77", "#b2328c", "#8c6d1f", "#5e4fa2", "#c0392b", "#4d4d4d")
DARK = ("#6baed6", "#fdae61", "#66c2a4", "#f28ac8", "#d9c36a", "#b3a6f2", "#ff8a80", "#c8c8c8")


def _series(colours: tuple[str, ...]) -> str:
    return " ".join(f"--s{index}: {colour};" for index, colour in enumerate(colours))


_SHADES = "\n".join(
    f".h{shade} {{ background: color-mix(in srgb, var(--bad) {shade * 6}%, var(--paper)) }}"
    for shade in range(N_SHADES)
)
STYLE = f"""
:root {{ color-scheme: light dark; --paper: #fff; --ink: #222; --muted: #666; --grid: #ddd; --soft: #f3f3f3;
  --bad: #e66101; --link: #0b57d0; {_series(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #16181c; --ink: #e6e6e6; --muted: #a0a4aa;
  --grid: #3a3f46; --soft: #23272e; --bad: #e08214; --link: #8ab4f8; {_series(DARK)} }} }}
* {{ box-sizing: border-box }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }}
h1, h2, h3 {{ line-height: 1.25 }} h2 {{ margin-top: 2.2rem }} a {{ color: var(--link) }}
.headline {{ font-size: 1.2rem; max-width: 60rem }} .note {{ color: var(--muted) }}
.wide {{ overflow: auto; margin: 1rem 0; max-width: 100% }} .tall {{ max-height: 36rem }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .2rem .45rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--grid) }}
th {{ background: var(--paper); position: sticky; top: 0; z-index: 1; font-weight: 600 }}
.sortable th {{ cursor: pointer }} th[aria-sort=ascending]::after {{ content: " \\25B4" }}
th[aria-sort=descending]::after {{ content: " \\25BE" }}
.words td, .words th, tr > :first-child {{ text-align: left }}
code {{ background: var(--soft); padding: .1rem .3rem; overflow-wrap: anywhere }}
td a {{ color: inherit; text-decoration-color: var(--muted) }}
svg {{ vertical-align: middle }} svg text {{ font-family: system-ui, sans-serif !important }}
.chart svg {{ min-width: 34rem; width: 100%; max-width: 60rem; height: auto; display: block }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem }}
.pair > * {{ min-width: 0 }} .curves .chart svg {{ min-width: 0 }}
.bar {{ fill: var(--s0) }} .bound {{ stroke: var(--s6); stroke-width: 2 }}
.one {{ stroke: var(--ink); stroke-dasharray: 2 2 }} .none {{ color: var(--muted) }}
select {{ font: inherit; max-width: 100% }}
{_SHADES}
@media print {{
  :root {{ --paper: #fff; --ink: #000; --muted: #555; --grid: #bbb; --soft: #eee; {_series(LIGHT)} }}
  .wide {{ overflow: visible; max-height: none }} table {{ font-size: 8pt }} th {{ position: static }}
  th, td {{ padding: .1rem .25rem }} .chart svg {{ min-width: 0 }}
  select {{ display: none }} [data-graph] {{ display: block !important; break-inside: avoid }} }}
"""
SCRIPT = """
const value = (row, at) => {
  const text = row.cells[at].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
  return [text === "-" || text === "" ? Infinity : number, text];
};
const sort = head => {
  const table = head.closest("table"), at = head.cellIndex, rows = [...table.tBodies[0].rows];
  const up = head.getAttribute("aria-sort") !== "ascending", way = up ? 1 : -1;
  rows.sort((one, other) => {
    const [a, x] = value(one, at), [b, y] = value(other, at);
    return way * (isNaN(a) || isNaN(b) ? x.localeCompare(y) : a === b ? 0 : a - b);
  });
  for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
};
for (const head of document.querySelectorAll(".sortable th")) {
  head.tabIndex = 0;
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(head); });
}
const chosen = document.querySelector("select");
const show = () => {
  for (const part of document.querySelectorAll("[data-graph]"))
    part.style.display = part.dataset.graph === chosen.value ? "" : "none";
};
if (chosen) { chosen.addEventListener("change", show); show(); }
"""
