//! Reasons made on purpose: name, place, interface, namespace and bytes.
