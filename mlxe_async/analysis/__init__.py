"""Reading what finished runs left: outcomes and tables. Knows run folders only, nothing of how they came about.

Its modules:

    outcomes, endings, past_runs                how runs ended; run folders, and their removal
    study, tables, pictures, statistics         a study's folder, its tables and figures; bootstrap and intervals
    suites, suite_pictures, scores, sweeps      normalised scores over tasks; trials of a sweep
    curve, behaviour, baselines                 learning curves; how a policy behaves; what no learning achieves
    breakout_study                              published curves of DQN and its variants on Breakout
    verdict, time_shares, forecast, tuning      what bounds the rate; shares of time; predictions; `tune`
    report, trace, exporters                    a run as an HTML page, as a timeline, in the files of other tools
"""
