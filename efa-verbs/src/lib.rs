//! Sound ownership over AWS EFA verbs objects.
