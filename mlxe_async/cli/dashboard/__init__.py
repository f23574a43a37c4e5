"""A page that shows runs while they go on: read from their folders alone, served on this machine, changing nothing.

From the ground up, each module knowing only those before it:

    series, run_now             one run as far as its log was read, in bounded memory however long the log is
    curves, panels, state       the parts of its page as escaped HTML, and the same in numbers for programs
    listing                     the runs of a folder
    watching, thinning          logs that are read while a page looks at them; of very many lines, some
    shell                       the frame of a page, its style and its script
    access, listening           the requests that are answered, and the socket that they come to
    server                      pages and their streams of changes
    serving                     the process that serves: started by the command, or beside a run by `companion`
    command                     `python -m mlxe_async dashboard`
"""
