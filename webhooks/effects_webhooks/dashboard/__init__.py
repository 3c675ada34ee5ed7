"""Pages of the dashboard about webhooks: endpoints, deliveries, events, and what would follow an answer."""
