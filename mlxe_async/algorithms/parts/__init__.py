"""Code that several papers share: acting, replay, rollouts, exploration, tables, and their common keys.

Its modules:

    on_policy, value_based                      families: keys, acting and targets of several papers
    continuous, tabular                         the same for bounded actions, and for tables
    policies, deterministic                     acting: a policy for any actions; the best action with noise
    soft, exploration                           values of a stochastic policy; mixtures and noise
    recurrent, sequences                        memory in the policy, and in networks of values
    replay                                      rewards that a row's target counts, and mirrored rows
    layers, value_networks                      layers and networks by the settings
    fields, value_fields                        keys that several have
"""
