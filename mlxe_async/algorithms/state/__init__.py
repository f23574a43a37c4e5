"""The engine's side of an algorithm's object: what of it is published and kept, its gradients, its own update.

Its modules:

    modules, held, flat_form, versions          what is published: modules, tensors, one vector; many versions
    snapshot, inside                            all that an object holds, as arrays by name, and back
    published, unkept, untouched                checks: acting as the learner would; changes that no state holds
    as_written, backward, gradients             an update as its file writes it; exchange among workers; read afterwards
    drawing, namespaces                         random numbers of an author's update; state beside classes
"""
