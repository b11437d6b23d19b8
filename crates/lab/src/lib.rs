//! Topologies of namespaces, experiments, peers and results.
