//! The client of this process.

use client::Client;

/// The client of this process.
pub static CLIENT: Client = Client::new();
