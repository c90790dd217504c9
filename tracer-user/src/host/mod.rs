//! TODO skeleton
