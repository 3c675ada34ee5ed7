"""What comes back after a server took a message: reports of delivery and of failure, and complaints."""
