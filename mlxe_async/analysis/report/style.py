"""The style of the page: colours for light and dark, one column on a phone, room for figures side by side."""

STYLE = (
    """
:root { color-scheme: light dark; --ink: #1b1c1e; --paper: #fff; --faint: #5c5f64; --grid: #dcdee1; --row: #f4f5f6;
  --edge: #8a8d93; --bad: #b91c1c;
  --c0: #0067a5; --c1: #b85400; --c2: #00785a; --c3: #8f3a8f; --c4: #c1272d; --c5: #0e7490; --c6: #7a5c00;
  --c7: #5b5fc7;
  --w0: #c9a36b; --w1: #b9a7cf; --w2: #9fc0a8; --w3: #a9bccf; --rest: #e3e5e8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7e9; --paper: #17181a; --faint: #a5a8ae; --grid: #35383d; --row: #202226; --edge: #7d8087;
    --bad: #ff7b72;
    --c0: #5ab0f0; --c1: #f2a04a; --c2: #3fc79a; --c3: #d58ad5; --c4: #ff7b72; --c5: #45c1dc; --c6: #cfb13f;
    --c7: #a3a7ff;
    --w0: #7d6339; --w1: #675a7c; --w2: #4f6f57; --w3: #52667a; --rest: #2e3136 }
}
* { box-sizing: border-box }
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; margin: 0 }
main { max-width: 1240px; margin: 0 auto; padding: 1rem 1.2rem 3rem }
h1 { font-size: 1.35rem; line-height: 1.25; overflow-wrap: anywhere; margin: .6rem 0 }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; padding-top: .8rem; border-top: 1px solid var(--grid) }
h3 { font-size: 1rem; margin: 1.1rem 0 .3rem; overflow-wrap: anywhere }
p { max-width: 70ch; margin: .4rem 0; overflow-wrap: anywhere }
.summary { font-size: 1.05rem }
.note, figcaption, .label, .x, .y, summary, caption { color: var(--faint); font-size: .85rem }
figcaption b { color: var(--ink) }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .4rem 2rem }
figure { margin: .8rem 0; min-width: 0 }
.frame { padding: .5rem .8rem 0 max(2.8rem, calc(.85 * var(--room, 3ch) + 1rem)) }
.frame.flat { padding: 0 }
.plot { position: relative; height: 13rem; margin-bottom: 1.4rem; border-left: 1px solid var(--edge);
  border-bottom: 1px solid var(--edge) }
.flat .plot { height: 0; border-left: 0 }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible }
.x, .y { position: absolute; white-space: nowrap; font-variant-numeric: tabular-nums; line-height: 1 }
.x { top: calc(100% + .35rem); transform: translateX(-50%) }
.y { right: calc(100% + .4rem); transform: translateY(50%) }
.label { text-align: center }
svg path, svg line { vector-effect: non-scaling-stroke; fill: none }
.mesh { stroke: var(--grid); stroke-width: 1 }
.line { stroke-width: 2; stroke-linejoin: round }
.band { stroke: none; opacity: .22 }
.dots { stroke-width: 4; stroke-linecap: round; opacity: .45 }
.dots.few { stroke-width: 5; opacity: .8 }
.dots.strong { stroke-width: 7; opacity: 1 }
.tick { stroke: var(--c0); stroke-width: 3 }
.tick.bad { stroke: var(--bad) }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .3rem 0; padding: 0;
  font-size: .85rem }
.legend li { overflow-wrap: anywhere; min-width: 0 }
.sample { width: 26px; height: 10px; margin-right: .4rem; vertical-align: middle }
.key { width: 14px; height: 14px; margin-right: .4rem; vertical-align: -2px }
.stacked { display: grid; grid-template-columns: 12rem minmax(0, 1fr); gap: .6rem; align-items: center;
  margin: .25rem 0 }
.stacked > span { font-size: .85rem; overflow-wrap: anywhere }
.stacked > svg { width: 100%; height: 1.4rem; display: block }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 9.5rem), 1fr)); gap: .5rem;
  margin: .5rem 0 }
dl > div { background: var(--row); border-radius: .4rem; padding: .45rem .7rem; min-width: 0 }
dt { color: var(--faint); font-size: .8rem }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
details { margin: .3rem 0 }
summary { cursor: pointer }
.wide { overflow-x: auto; max-width: 100% }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; margin: .4rem 0 }
caption { text-align: left; position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--grid); text-align: left; vertical-align: top }
thead th { vertical-align: bottom }
th { font-weight: 600 }
tbody th { font-weight: 400 }
.numbers td, .numbers thead th + th { text-align: right; white-space: nowrap }
.words td, .words th { overflow-wrap: anywhere; min-width: 5rem }
tbody tr:nth-child(even) { background: var(--row) }
@media (max-width: 599px) {
  .figures { grid-template-columns: minmax(0, 1fr) }
  main { padding: .5rem .8rem 2rem }
  .plot { height: 11rem }
  .frame { padding-right: .4rem; padding-left: max(2rem, calc(.85 * var(--room, 3ch) + .8rem)) }
  dl { grid-template-columns: repeat(2, minmax(0, 1fr)) }
  .words td, .words th { min-width: 0 }
  .stacked { grid-template-columns: minmax(0, 1fr); gap: 0 }
  th, td { padding: .25rem .35rem }
}
@media print { details > * { display: block } .plot, figure { break-inside: avoid } }
"""
    + "".join(
        f".line.c{n}, .dots.c{n} {{ stroke: var(--c{n}) }} .band.c{n}, .bar.c{n}, .f{n} {{ fill: var(--c{n}) }}\n"
        for n in range(8)
    )
    + "".join(f".f{8 + n} {{ fill: var(--w{n}) }}\n" for n in range(4))
    + ".f-rest { fill: var(--rest) }\n"
)
