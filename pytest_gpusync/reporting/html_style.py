"""The style sheet of the HTML page."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#59636e;--rule:#d8dee4;--soft:#f3f5f7;--band:#e9edf1;
--bad:#c9252d;--ok:#1a7f4b;--ask:#9a6700;--wait:#d9622b;--bar:#3b76c4;--mute:#98a2ad;
--runs:#b9d3ee}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e4e8ed;--dim:#98a3af;--rule:#313842;--soft:#1b212a;
--band:#222a34;--bad:#ff7b72;--ok:#4cc38a;--ask:#e0b341;--wait:#ff9a5c;--bar:#6ca4ea;--mute:#66707c;
--runs:#29435f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem clamp(.8rem,3vw,2.5rem) 4rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;margin:0 0 .2rem;letter-spacing:-.01em}
h2{font-size:1.1rem;margin:2.4rem 0 .7rem}
p{margin:.2rem 0}.note,figcaption,footer{color:var(--dim);font-size:.87rem}
a{color:inherit;text-decoration-color:var(--mute);text-underline-offset:.2em}
code,pre,.name,summary,.names{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
code,.name,summary{font-size:.87em;overflow-wrap:anywhere}
.chips{margin-top:.9rem;display:flex;flex-wrap:wrap;gap:.5rem}
.chip{display:inline-block;white-space:nowrap;font:600 .78rem/1.6 system-ui,sans-serif;padding:0 .6em;
border:1px solid currentColor;border-radius:1em}
.failed{color:var(--bad)}.passed{color:var(--ok)}.not_measured,.undecided{color:var(--ask)}.measured{color:var(--dim)}
.broken{list-style:none;padding:0;margin:1.2rem 0 0}
.broken li{border-left:3px solid var(--bad);padding:.3rem .8rem;margin:.4rem 0;background:var(--soft)}
.broken .unknown{border-color:var(--ask)}.broken code{display:block}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th{font-size:.8rem;font-weight:600;color:var(--dim);text-align:left}
th,td{padding:.4rem .8rem .4rem 0;border-bottom:1px solid var(--rule);vertical-align:middle}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.name{min-width:12rem}
th.bar,td.bar{width:26%;min-width:7rem}
.meter{position:relative;height:.8rem;background:var(--soft);border-radius:2px}
.meter b{display:block;height:100%;background:var(--bar);border-radius:2px}.meter.failed b{background:var(--bad)}
.meter i{position:absolute;top:-.2rem;bottom:-.2rem;border-left:2px solid var(--fg);margin-left:-1px}
.lines{list-style:none;padding:0;margin:0}
.lines li{border-top:1px solid var(--rule);padding:.75rem 0}
.where{color:var(--dim);font-size:.9rem;overflow-wrap:anywhere}.where code{color:var(--fg);font-weight:600}
pre{margin:.35rem 0;padding:.4rem .7rem;background:var(--soft);border-radius:4px;overflow-x:auto;font-size:.88rem}
.code{color:var(--wait)}.facts{color:var(--dim);font-size:.87rem}.facts b{color:var(--fg)}.excused{opacity:.72}
details{border-top:1px solid var(--rule);padding:.6rem 0}summary{cursor:pointer;padding:.2rem 0}
figure{margin:.8rem 0 1.2rem}
.steps svg{display:block;width:100%;height:6rem;background:var(--soft);border-radius:3px}
.ends{display:flex;justify-content:space-between;color:var(--dim);font-size:.78rem}
rect.bar{fill:var(--bar)}rect.over{fill:var(--bad)}
line.limit{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:5 4;vector-effect:non-scaling-stroke}
rect.band{fill:var(--band)}rect.runs{fill:var(--runs)}
rect.wait,rect.excused{fill:var(--wait);stroke:var(--wait);stroke-width:.8;vector-effect:non-scaling-stroke}
rect.excused{fill:var(--mute);stroke:var(--mute)}rect.aside{opacity:.45}
.timeline input{position:absolute;opacity:0}
.timeline label{display:inline-block;margin:.4rem .3rem .4rem 0;padding:0 .6em;border:1px solid var(--rule);
border-radius:4px;font-size:.8rem;cursor:pointer;color:var(--dim)}
.timeline input:checked+label{color:var(--fg);border-color:var(--fg)}
.timeline input:focus-visible+label{outline:2px solid var(--bar)}
.lanes{display:grid;grid-template-columns:minmax(6rem,14rem) 1fr;gap:.7rem}
.names{font-size:.78rem;line-height:26px;text-align:right}
.names div{height:26px;margin-bottom:2px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;direction:rtl}
.lanes svg{display:block;width:100%;height:26px;margin-bottom:2px;background:var(--soft)}
.axis,.names .axis{position:relative;height:20px;margin-bottom:2px;color:var(--dim);font-size:.75rem;line-height:20px}
.axis span{position:absolute;padding-left:2px;white-space:nowrap}.axis .end{right:0}.axis .f4,.axis .f16{display:none}
.z4:checked~.lanes .f4,.z16:checked~.lanes .f4,.z16:checked~.lanes .f16,.z64:checked~.lanes .f4,
.z64:checked~.lanes .f16{display:inline}
.z4:checked~.lanes .stretch{width:400%}.z16:checked~.lanes .stretch{width:1600%}
.z64:checked~.lanes .stretch{width:6400%}
footer{margin-top:3rem}
@media (max-width:40rem){.lanes{grid-template-columns:minmax(4.5rem,30%) 1fr;gap:.4rem}
.regions thead{display:none}.regions tr{display:grid;grid-template-columns:auto 1fr 1fr;padding:.5rem 0;
border-bottom:1px solid var(--rule);gap:.1rem .8rem}.regions td{border:0;padding:0;text-align:left}
.regions td.name,.regions td.bar{grid-column:1/-1;width:auto}.regions td.name{order:-1}
.regions td:nth-child(3)::before{content:"worst "}.regions td:nth-child(4){display:none}
.regions td:nth-child(5):not(:empty)::before{content:"budget "}.regions td:nth-child(7){display:none}}
"""
